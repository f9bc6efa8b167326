#!/bin/sh
# Python for Spark's processes on this machine. Spark lets them import pyspark from its zip files, which every process
# compiles anew, for most of a second. The package that is installed is the same, and compiled: leave the zips out.
kept=
set -f # a path is what it says
IFS=:
for part in $PYTHONPATH; do
    case $part in
        */pyspark.zip | */py4j-*-src.zip) ;;
        *) kept=${kept:+$kept:}$part ;;
    esac
done
unset IFS
PYTHONPATH=$kept exec "${PYSPARK_REAL_PYTHON:-python3}" "$@"
