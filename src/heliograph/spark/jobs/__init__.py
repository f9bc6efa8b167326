"""The built-in pipelines, a module each. ``heliograph.spark.pipelines`` says how one is made."""
