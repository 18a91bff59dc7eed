#!/bin/sh
# Measure a suite or a program, compare it with a baseline, and write summary.md, junit.xml and report.html.
#
# PSCALE_SUITE      suite to measure; or
# PSCALE_COMMAND    program and arguments, in which {tree} is the folder of the commit: '{tree}/mine 800'
# PSCALE_RANKS      its sizes: 1,2
# PSCALE_BUILD      command that builds the program, in the folder of each commit
# PSCALE_BUDGET     time to measure: 3m
# PSCALE_BASELINE   folder of a run, or branch, tag or commit
# PSCALE_FAIL_IF    conditions of `pscale compare`, separated by commas: slower:5%
# PSCALE_REFERENCE  file for `pscale check`
# PSCALE_OUT        folder for all that is written: pscale-ci
#
# Exits with 1 if a condition holds, an expectation falls short or a launch failed; undecided is no failure,
# unless PSCALE_FAIL_IF has `undecided`.
set -eu

fail() {
    echo "pscale: $*" >&2
    exit 2
}

suite=${PSCALE_SUITE:-} command=${PSCALE_COMMAND:-} baseline=${PSCALE_BASELINE:-}
budget=${PSCALE_BUDGET:-3m} out=${PSCALE_OUT:-pscale-ci}
[ -n "$suite" ] && [ -n "$command" ] && fail "expected a suite or a command, got both"
[ -n "$suite$command" ] || fail "expected a suite or a command, got neither"
case $command in '' | *'{tree}'*) ;; *) fail "the command has no {tree}; expected such as '{tree}/mine 800'" ;; esac
mkdir -p "$out"
out=$(CDPATH='' cd -- "$out" && pwd)
[ ! -e "$out/runs" ] || fail "$out has runs already; expected a new folder"

build() {
    if [ -n "${PSCALE_BUILD:-}" ]; then (cd -- "$1" && sh -c "$PSCALE_BUILD"); fi
}

newest() { # of the runs in a folder
    for document in "$1"/*/*/run.json; do folder=${document%/run.json}; done
    [ -e "$folder/run.json" ] || fail "nothing was measured"
    echo "$folder"
}

code=0
measure() { # a suite into a folder
    reports=$1
    shift
    if ! pscale run "$@" --reports "$reports" --budget "$budget" --new; then code=1; fi
}

variants=head
ln -sfn "$PWD" "$out/head"
build "$PWD"
if [ -n "$baseline" ] && [ ! -d "$baseline" ]; then
    git rev-parse --verify --quiet "$baseline^{commit}" >/dev/null || git fetch --quiet --depth 1 origin "$baseline"
    commit=$(git rev-parse --verify --quiet "$baseline^{commit}" || git rev-parse FETCH_HEAD)
    git worktree add --quiet --force --detach "$out/base" "$commit"
    build "$out/base"
    variants=base,head
fi

before=''
if [ -n "$command" ]; then # launches of both commits are pairs: a round has one of each
    quoted=$(printf '%s' "$command" | sed 's/{tree}/{here}\/{tree}/g' | python -c 'import json, sys; print(json.dumps(sys.stdin.read()))')
    cat >"$out/ci.yaml" <<EOF
name: ci
scaling: strong
workload: {command: $quoted, params: {tree: head}, same_work: [tree]}
sweep: {tree: [$variants], ranks: [${PSCALE_RANKS:-1,2}]}
EOF
    measure "$out/runs" "$out/ci.yaml"
else
    if [ "$variants" != head ]; then
        at=$suite
        [ ! -f "$out/base/$suite" ] || at=$out/base/$suite
        measure "$out/base-runs" "$at"
        before=$(newest "$out/base-runs")
    fi
    measure "$out/runs" "$suite"
fi
run=$(newest "$out/runs")
[ ! -d "$baseline" ] || before=$baseline

{
    if [ -n "$baseline" ]; then
        set --
        for condition in $(echo "${PSCALE_FAIL_IF:-slower:5%}" | tr ',' ' '); do set -- "$@" --fail-if "$condition"; done
        compared=0
        pscale compare ${before:+"$before"} "$run" --format markdown "$@" || compared=$?
        [ "$compared" -ne 1 ] || code=1
        [ "$compared" -le 1 ] || [ "$compared" -eq 6 ] || exit "$compared"
        echo
    fi
    set --
    [ -z "${PSCALE_REFERENCE:-}" ] || set -- --reference "$PSCALE_REFERENCE"
    checked=0
    pscale check "$run" --format markdown --junit "$out/junit.xml" "$@" >"$out/check.md" || checked=$?
    grep -q '^\*\*nothing to check' "$out/check.md" || cat "$out/check.md"
    [ "$checked" -ne 1 ] || code=1
    [ "$checked" -le 1 ] || [ "$checked" -eq 6 ] || exit "$checked"
} >"$out/summary.md"
pscale report "$run" --format html >/dev/null
cp "$run/report.html" "$out/report.html"
cat "$out/summary.md"
[ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$out/summary.md" >>"$GITHUB_STEP_SUMMARY"
[ -z "${GITHUB_OUTPUT:-}" ] || echo "run=$run" >>"$GITHUB_OUTPUT"
[ ! -e "$out/base" ] || git worktree remove --force "$out/base"
rm -f "$out/head" "$out/check.md"
exit "$code"
