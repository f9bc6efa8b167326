from __future__ import annotations

import itertools
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph import config
from heliograph.config import Config, describe, load, to_human, units
from heliograph.errors import ConfigError

BY_KEY = {setting.key: setting for setting in describe()}


def get(cfg: Config, key: str) -> object:
    value: object = cfg
    for part in key.split("."):
        value = getattr(value, part)
    return value


# -- who wins -----------------------------------------------------------------------------------------------


def test_arguments_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "heliograph.yaml"
    file.write_text("storage:\n  durability: os\n  sync_interval_ms: 7\n  position_flush_ms: 8\nname: from-file\n")
    env = {"HELIOGRAPH_STORAGE_SYNC_INTERVAL_MS": "70", "HELIOGRAPH_STORAGE_POSITION_FLUSH_MS": "80"}
    cfg = load(file, env=env, position_flush_ms=800)
    assert cfg.name == "from-file"
    assert cfg.storage.durability == "os"
    assert cfg.storage.sync_interval_ms == 70
    assert cfg.storage.position_flush_ms == 800
    assert cfg.storage.segment_bytes == Config().storage.segment_bytes


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    yaml, toml = tmp_path / "a.yaml", tmp_path / "a.toml"
    yaml.write_text("name: host1\nstorage:\n  retention_age_s: 7d\n  compress: yes\naudit:\n")
    toml.write_text('name = "host1"\n[storage]\nretention_age_s = "7d"\ncompress = true\n')
    assert load(yaml, env={}) == load(toml, env={})
    assert load(yaml, env={}).storage.retention_age_s == 604_800


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "here.toml"
    file.write_text('service = "monitor"\n')
    assert load(env={"HELIOGRAPH_CONFIG": str(file)}).service == "monitor"


def test_every_setting_can_be_said_in_the_environment() -> None:
    for setting in describe():
        value = to_human(setting, setting.default)
        text = "" if value is None else str(value)
        assert get(load(env={setting.env: text}), setting.key) in {setting.default, text}


def test_every_setting_can_be_said_by_keyword_and_the_keywords_are_unique() -> None:
    assert len({setting.keyword for setting in describe()}) == len(describe())
    for setting in describe():
        assert Config().with_settings(**{setting.keyword: setting.default}) == Config()
        assert Config().with_settings(**{setting.key.replace(".", "_"): setting.default}) == Config()


def test_a_leaf_that_two_sections_share_is_told_apart_by_its_section() -> None:
    cfg = Config().with_settings(max_bytes="1MB", audit_max_bytes="2MB")
    assert (cfg.messages.max_bytes, cfg.audit.max_bytes) == (1_000_000, 2_000_000)


def test_a_path_is_a_fine_data_dir(tmp_path: Path) -> None:
    assert Config().with_settings(data_dir=tmp_path).storage.data_dir == str(tmp_path)


def test_with_settings_leaves_the_original_alone() -> None:
    before = Config()
    after = before.with_settings(durability="os", max_retries=1)
    assert before == Config()
    assert (after.storage.durability, after.subscribers.max_retries) == ("os", 1)


# -- what is refused, and what the error says ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"storage": {"durabilty": "os"}}, "did you mean storage.durability?"),
        ({"durability": "os"}, "did you mean storage.durability?"),
        ({"sotrage": {"durability": "os"}}, "did you mean storage?"),
        ({"subscribers": {"max_bytes": 1}}, "did you mean messages.max_bytes or audit.max_bytes?"),
        ({"zzz": 1}, "helio config show"),
        ({"storage": "fast"}, "section"),
        ({"storage": {"durability": "allways"}}, "must be one of always, interval, os"),
        ({"storage": {"segment_bytes": "64 parsecs"}}, "not a size"),
        ({"storage": {"segment_bytes": 1}}, "storage.segment_bytes = 1"),
        ({"storage": {"retention_age_s": "-7d"}}, "not a duration"),
        ({"storage": {"sync_interval_ms": 0}}, "storage.sync_interval_ms = 0"),
        ({"storage": {"sync_interval_ms": "0.5ms"}}, "Expected `int`"),
        ({"storage": {"compress": "perhaps"}}, "Expected `bool`"),
        ({"subscribers": {"backoff_jitter": 1.5}}, "<= 1"),
        ({"subscribers": {"timeout_s": float("inf")}}, "finite"),
        ({"subscribers": {"timeout_s": float("nan")}}, ">= 0"),
        ({"subscribers": {"max_retries": "5"}}, "Expected `int`"),
        ({"subscribers": {"backoff_base_ms": 9000}}, "raise the second or lower the first"),
        ({1: 2}, "no setting '1'"),
    ],
)
def test_a_wrong_setting_is_refused_with_a_way_out(tree: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tree, env={})
    assert says in str(caught.value)


@pytest.mark.parametrize("service", ["two\nlines", "\udcff", "x" * 256])
def test_a_service_that_no_message_can_name_is_refused(service: str) -> None:
    with pytest.raises(ConfigError, match="service is a printable text"):
        config.load(env={"HELIOGRAPH_SERVICE": service})
    with pytest.raises(ConfigError, match="service is a printable text"):
        config.Config().with_settings(service=service)


def test_a_misspelt_variable_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"did you mean HELIOGRAPH_STORAGE_DURABILITY\?"):
        load(env={"HELIOGRAPH_STORAGE_DURABILTY": "os"})


def test_a_wrong_value_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"from HELIOGRAPH_SUBSCRIBERS_MAX_RETRIES"):
        load(env={"HELIOGRAPH_SUBSCRIBERS_MAX_RETRIES": "many"})


def test_variables_kubernetes_sets_for_a_service_of_our_name_are_not_ours() -> None:
    env = {
        "HELIOGRAPH_SERVICE_HOST": "10.0.0.1",
        "HELIOGRAPH_SERVICE_PORT": "80",
        "HELIOGRAPH_SERVICE_PORT_HTTP": "80",
        "HELIOGRAPH_PORT": "tcp://10.0.0.1:80",
        "HELIOGRAPH_PORT_80_TCP": "tcp://10.0.0.1:80",
        "HELIOGRAPH_PORT_80_TCP_ADDR": "10.0.0.1",
        "HELIOGRAPH_SERVICE": "billing",
    }
    assert load(env=env) == Config(service="billing")


def test_a_misspelt_keyword_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"did you mean durability\?"):
        Config().with_settings(durabilty="os")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "storage: [", "not valid YAML"),
        ("a.yaml", "name: a\nname: b\n", "'name' is there twice"),
        ("a.yaml", "- just\n- a list\n", "must hold sections"),
        ("a.toml", "name = ", "not valid TOML"),
        ("a.toml", 'name = "a"\nname = "b"\n', "not valid TOML"),
        ("a.ini", "[storage]\n", "format is unknown"),
    ],
)
def test_a_broken_file_is_refused_with_its_name(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / name, env={})
    assert says in str(caught.value)
    assert name in str(caught.value)


def test_a_missing_or_unreadable_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load(tmp_path / "nowhere.yaml", env={})
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml"):
        load(tmp_path / "latin.yaml", env={})


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing yet\nstorage:\n  # durability: os\n")
    assert load(tmp_path / "empty.yaml", env={}) == Config()


# -- values as people write them ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MB", 64_000_000),
        ("64MiB", 64 * 2**20),
        ("64 mib", 64 * 2**20),
        ("1.5kB", 1500),
        ("7", 7),
        ("10_000", 10_000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("7d", "s", 604_800), ("12h", "s", 43_200), ("30m", "s", 1_800), ("10s", "ms", 10_000),
        ("250ms", "s", 0.25), ("2w", "s", 1_209_600), ("5", "ms", 5), ("0.5", "s", 0.5),
    ],
)  # fmt: skip
def test_durations(text: str, unit: str, value: float) -> None:
    assert units.parse_duration(text, unit) == value


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e3", "64Q", "1 2", "١٢", "12hours", "nan", "inf"])
def test_what_is_neither_size_nor_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        units.parse_size(text)
    with pytest.raises(ValueError, match="not a duration"):
        units.parse_duration(text, "s")


def test_a_size_that_could_mean_1000_or_1024_is_refused() -> None:
    with pytest.raises(ValueError, match='"64MiB" or "64MB"'):
        units.parse_size("64M")


@given(st.integers(0, 2**60))
def test_a_size_for_people_reads_back_as_the_same(size: int) -> None:
    assert units.parse_size(str(units.human_size(size))) == size


@given(st.integers(0, 10**12), st.sampled_from(["s", "ms"]))
def test_a_duration_for_people_reads_back_as_the_same(value: int, unit: str) -> None:
    assert units.parse_duration(str(units.human_duration(value, unit)), unit) == value


def test_what_is_shown_to_people_loads_as_the_same() -> None:
    cfg = Config().with_settings(
        name="host1", retention_age_s="7d", busy_timeout_s=0.25, segment_bytes=10_000_000, compress=True
    )
    assert load(cfg.to_dict(human=True), env={}) == cfg
    assert load(cfg.to_dict(), env={}) == cfg


# -- the description ----------------------------------------------------------------------------------------


def test_every_setting_is_described() -> None:
    for setting in describe():
        assert setting.doc.endswith("."), setting.key
        assert setting.kind, setting.key


def test_every_default_is_within_its_own_range() -> None:
    assert load(Config().to_dict(), env={}) == Config()


def test_words_allowed_are_named() -> None:
    assert BY_KEY["storage.durability"].kind == "`always`, `interval`, `os`"


def test_units_are_last_in_names_so_that_numbers_are_not_guessed() -> None:
    kinds = {setting.key: setting.kind for setting in describe()}
    assert {key for key, kind in kinds.items() if kind == "duration"} == {
        key for key in kinds if key.endswith(("_s", "_ms"))
    }
    assert all("bytes" in key for key, kind in kinds.items() if kind == "size")


def test_a_configuration_cannot_be_changed_under_somebodys_feet() -> None:
    with pytest.raises(AttributeError):
        Config().name = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Config().storage.durability = "os"  # type: ignore[misc]


def test_environment_names_do_not_collide() -> None:
    for one, other in itertools.combinations(describe(), 2):
        assert one.env != other.env
    assert config.ENV_FILE not in {setting.env for setting in describe()}


# -- hubs, links and certificates ---------------------------------------------------------------------------

FEDERATED = """
name: host2
storage: {data_dir: ./host2}
hub: {listen: ":7740", peers: [{name: host1, publish: ["alerts", "sensors.>"], subscribe: []}]}
links: [{hub: "hub.example:7740", publish: ["alerts"], subscribe: ["commands.host2"], start: new}]
tls: {cert: host2.crt, key: host2.key, ca: ca.crt}
"""
TLS = {"cert": "a.crt", "key": "a.key", "ca": "ca.crt"}


def test_a_station_can_be_hub_and_client_at_once(tmp_path: Path) -> None:
    file = tmp_path / "heliograph.yaml"
    file.write_text(FEDERATED)
    cfg = load(file, env={})
    assert cfg.hub.listen == ":7740"
    assert cfg.hub.peers == (config.Peer(name="host1", publish=("alerts", "sensors.>")),)
    assert cfg.links == (
        config.Link(hub="hub.example:7740", publish=("alerts",), subscribe=("commands.host2",), start="new"),
    )
    assert cfg.tls.ca == "ca.crt"


def test_a_peer_may_do_nothing_and_a_hub_listens_nowhere_unless_it_is_said() -> None:
    peer = config.Peer(name="host1")
    assert (peer.publish, peer.subscribe, peer.relay) == ((), (), ())
    assert (Config().hub.listen, Config().hub.peers, Config().links) == ("", (), ())


def test_lists_are_said_in_files_of_both_kinds_in_the_environment_and_as_arguments(tmp_path: Path) -> None:
    toml = tmp_path / "a.toml"
    toml.write_text('[[links]]\nhub = "h:1"\npublish = ["a"]\n[tls]\ncert = "a.crt"\nkey = "a.key"\nca = "ca.crt"\n')
    expected = (config.Link(hub="h:1", publish=("a",)),)
    assert load(toml, env={}).links == expected
    env = {"HELIOGRAPH_LINKS": '[{"hub": "h:1", "publish": ["a"]}]'}
    assert load({"tls": TLS}, env=env).links == expected
    assert load({"tls": TLS}, env={}, links=[{"hub": "h:1", "publish": ["a"]}]).links == expected
    assert load({"tls": TLS}, env={}, links=expected).links == expected
    assert load({"links": None, "hub": {"peers": None}}, env={}).links == ()


@pytest.mark.parametrize("start", ["2026-11-15T20:30:00Z", "2026-11-15T20:30:00.250000+02:00"])
def test_a_time_needs_no_quotes_though_yaml_and_toml_have_times_of_their_own(tmp_path: Path, start: str) -> None:
    yaml, toml = tmp_path / "a.yaml", tmp_path / "a.toml"
    yaml.write_text(f"links: [{{hub: 'h:1', start: {start}}}]\ntls: {{cert: a.crt, key: a.key, ca: ca.crt}}\n")
    toml.write_text(f'[[links]]\nhub = "h:1"\nstart = {start}\n[tls]\ncert = "a.crt"\nkey = "a.key"\nca = "ca.crt"\n')
    for file in (yaml, toml):
        said = load(file, env={}).links[0].start
        assert datetime.fromisoformat(said) == datetime.fromisoformat(start)


@pytest.mark.parametrize("start", ["2026-11-15T20:30:00", "2026-11-15"])
def test_a_time_without_its_zone_is_none_in_quotes_or_not(tmp_path: Path, start: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"links: [{{hub: 'h:1', start: {start}}}]\ntls: {{cert: a.crt, key: a.key, ca: ca.crt}}\n")
    with pytest.raises(ConfigError, match="write first, new, or a time"):
        load(file, env={})


def test_quotas_and_windows_are_sizes() -> None:
    cfg = load({"hub": {"window_bytes": "1MiB", "peers": [{"name": "a", "bytes_per_s": "10MB"}]}}, env={})
    assert cfg.hub.window_bytes == 1 << 20
    assert cfg.hub.peers[0].bytes_per_s == 10_000_000
    shown = cfg.to_dict(human=True)
    assert shown["hub"]["peers"][0]["bytes_per_s"] == "10MB"
    assert load(shown, env={}) == cfg
    assert load(cfg.to_dict(), env={}) == cfg


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"hub": {"listen": "7740"}}, "write HOST:PORT"),
        ({"hub": {"listen": ":77400"}}, "write HOST:PORT"),
        ({"hub": {"listen": "[::1]:7740"}}, "tls.cert, tls.key, tls.ca"),
        ({"hub": {"listen": ":7740"}, "tls": {"cert": "a", "key": "b"}}, "hub.listen needs tls.ca"),
        ({"links": [{"hub": "h:1"}]}, "links need tls.cert"),
        ({"links": [{"hub": "https://h:1"}], "tls": TLS}, "links[0].hub"),
        ({"links": [{"hub": "h:1"}, {"hub": "h:1"}], "tls": TLS}, "'h:1' is there twice"),
        ({"links": [{"hub": "h:1", "start": "soon"}], "tls": TLS}, "write first, new, or a time"),
        ({"links": [{"hub": "h:1", "start": "2026-11-15T20:30:00"}], "tls": TLS}, "write first, new, or a time"),
        ({"links": [{"hub": "h:1", "publsh": ["a"]}], "tls": TLS}, "did you mean publish?"),
        ({"links": [{"publish": ["a"]}], "tls": TLS}, "number 1 has no hub, which it needs"),
        ({"links": ["h:1"], "tls": TLS}, "number 1 is 'h:1'"),
        ({"links": {"hub": "h:1"}}, "no section 'links'"),
        ({"links": "h:1"}, "must be a list"),
        (
            {"links": [{"hub": "h:1", "publish": "alerts"}], "tls": TLS},
            "publish must be a list, as in publish: [alerts]",
        ),
        ({"hub": {"peers": [{"name": "../x"}]}}, "hub.peers[0].name: '../x' is not a station name"),
        ({"hub": {"peers": [{"name": "a.*"}]}}, "hub.peers[0].name: 'a.*' is not a station name"),
        ({"hub": {"peers": [{"name": "a", "publish": ["x.>.y"]}]}}, "hub.peers[0].publish"),
        ({"hub": {"peers": [{"name": "a", "relay": ["b c"]}]}}, "hub.peers[0].relay: 'b c' is not a station name"),
        ({"hub": {"peers": [{"name": "a"}, {"name": "a"}]}}, "'a' is there twice"),
        ({"hub": {"peers": [{"name": "a", "bytes_per_s": "many"}]}}, "not a size"),
        ({"hub": {"heartbeat_s": 0}}, "hub.heartbeat_s"),
        ({"hub": {"window_bytes": 1}}, "hub.window_bytes"),
    ],
)
def test_a_federation_that_cannot_work_is_refused_with_a_way_out(tree: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tree, env={})
    assert says in str(caught.value)


def test_a_list_in_the_environment_that_is_no_json_says_so() -> None:
    with pytest.raises(ConfigError, match="in the environment a list is JSON"):
        load(env={"HELIOGRAPH_LINKS": "h:1"})
