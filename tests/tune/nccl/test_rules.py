"""NCCL's files: files answer as the table did, and rules that NCCL would refuse are refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.configurations import Task, nccl_config
from jaxcoll.errors import FormatError, TuneError
from jaxcoll.io.nccl.conf import ALGORITHMS, COLLECTIVES, MAX_BYTES, PROTOCOLS
from jaxcoll.tune.nccl import NcclRule, answer, conf, environment, ncclx, rules_of
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine

A40 = Machine("gpu: NVIDIA A40", "0.12.0")
DEFAULT = nccl_config("ring", "simple", "shm", 2, 256, 2 << 20)


def possible(collective: str, algorithm: str, protocol: str) -> bool:
    try:
        NcclRule(collective, 0, None, algorithm, protocol)
    except TuneError:
        return False
    return True


WORDS = [
    words
    for words in ((c, a, p) for c in COLLECTIVES for a in ALGORITHMS for p in PROTOCOLS)
    if possible(*words)
]
some = st.none() | st.integers(1, 3)


@st.composite
def rules(draw, ranks=None, nodes=None) -> NcclRule:
    collective, algorithm, protocol = draw(st.sampled_from(WORDS))
    low = draw(st.integers(0, 200))
    high = draw(st.none() | st.integers(low + 8, 400))
    return NcclRule(
        collective,
        low,
        high,
        algorithm,
        protocol,
        channels=draw(some),
        nodes=nodes or draw(some),
        ranks=ranks or draw(some),
        pipelined_ops=draw(some),
        registered=draw(st.none() | st.booleans()),
    )


def test_what_nccl_runs():
    assert len(WORDS) == 2 * 3 + 2 * (3 + 3) + (3 + 3 + 4)
    with pytest.raises(TuneError, match="NCCL never runs all_gather by 'tree'"):
        NcclRule("all_gather", 0, None, "tree", "ll")
    with pytest.raises(TuneError, match="'nvls' by the protocol 'simple' only"):
        NcclRule("all_reduce", 0, None, "nvls", "ll")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"collective": "all_to_all"}, "collective must be one of broadcast"),
        ({"algorithm": "Ring"}, "algorithm must be one of tree"),
        ({"protocol": "LL"}, "protocol must be one of ll"),
        ({"min_bytes": -1}, "min_bytes"),
        ({"min_bytes": 9, "max_bytes": 8}, "max_bytes must be an integer of at least 9"),
        ({"max_bytes": MAX_BYTES + 1}, "max_bytes"),
        ({"channels": 0}, "channels"),
        ({"channels": 129}, "channels must be an integer of at most 128"),
        ({"nodes": 0}, "nodes"),
        ({"ranks": 2.5}, "ranks"),
        ({"chunk_bytes": 0}, "chunk_bytes"),
        ({"registered": 1}, "registered"),
    ],
)
def test_rules_that_nccl_does_not_have_are_refused(change, words):
    fields: dict = {
        "collective": "all_reduce",
        "min_bytes": 0,
        "max_bytes": None,
        "algorithm": "ring",
        "protocol": "simple",
    }
    with pytest.raises(TuneError, match=words):
        NcclRule(**(fields | change))


# ---------------------------------------------------------------------- from tables


def tuned(*choices: tuple[int, str, int]) -> Table:
    """A table of all_reduces of 8 ranks: sizes, algorithms, channels."""
    table = Table()
    for nbytes, algorithm, channels in choices:
        config = nccl_config(algorithm, "simple", "shm", channels, 256, 1 << 20)
        table.choose(Task("all_reduce", nbytes, "float32", 8), DEFAULT, config, nbytes * 1e-9, A40)
    return table


@given(
    st.dictionaries(st.integers(1, 400), st.sampled_from(("tree", "ring")), min_size=1, max_size=5)
)
def test_rules_answer_as_the_table_does(algorithms):
    table = tuned(*((size, name, 4) for size, name in algorithms.items()))
    derived = rules_of(table, A40, nodes=1)
    for nbytes in range(0, 500, 7):
        config = table.lookup(Task("all_reduce", nbytes, "float32", 8), A40)
        rule = answer(derived, "all_reduce", nbytes, 1, 8)
        assert config is not None
        assert rule is not None
        assert (rule.algorithm, rule.channels) == (config["algorithm"], 4)
        assert answer(derived, "all_reduce", nbytes, 1, 16) is None
        assert answer(derived, "all_gather", nbytes, 1, 8) is None


def test_tables_that_nccl_cannot_follow_are_refused_by_name():
    with pytest.raises(TuneError, match="no decisions for gpu: NVIDIA A40"):
        rules_of(Table(), A40)
    table = tuned((64, "ring", 2))
    bfloat16 = Task("all_reduce", 64, "bfloat16", 8)
    table.choose(bfloat16, DEFAULT, DEFAULT.replace(channels=9), None, A40)
    with pytest.raises(TuneError, match="apart for several dtypes"):
        rules_of(table, A40)
    ours = Table()
    ours.choose(
        Task("all_reduce", 64, "int8", 8), DEFAULT.replace(algorithm="tacos"), None, None, A40
    )
    with pytest.raises(TuneError, match="NCCL has no algorithm 'tacos'"):
        rules_of(ours, A40)


# ---------------------------------------------------------------------- nccl_tuner.conf


@given(st.lists(rules(), max_size=5))
def test_conf_round_trips(given_rules):
    text = conf.dumps(given_rules)
    assert conf.loads(text) == tuple(given_rules)
    for line in text.splitlines():
        assert len(line) < 256
        assert line.startswith("#") or len(line.split(",")) == 10


def test_conf_of_nccl_and_its_example_lines():
    text = (
        "# a comment\n\nallreduce,0,65536,tree,ll,2,-1,-1\r\n"
        "allgather, 65537 ,18446744073709551615,\tring,simple,-1,1,8,-1\n"
        "reducescatter,0,1,pat,simple,0,2,16,1,1\n"
    )
    first, second, third = conf.loads(text)
    assert first == NcclRule("all_reduce", 0, 65536, "tree", "ll", channels=2)
    assert second == NcclRule("all_gather", 65537, None, "ring", "simple", nodes=1, ranks=8)
    assert (third.pipelined_ops, third.registered, third.channels) == (1, True, None)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("collective,min,max,algorithm,protocol,channels,nNodes,nRanks", "as allreduce"),
        ("all_reduce,0,1,ring,ll,1,1,1", "would read 'all_reduce' as allreduce"),
        ("allreduce,0,1,rings,ll,1,1,1", "algorithm must be one of"),
        ("allreduce,0,1,ring,LL,1,1,1", "protocol must be one of"),
        ("allreduce,0,1,ring,ll,1,1", "8 to 10 columns"),
        ("allreduce,0,1,ring,ll,1,1,1,1,1,1", "8 to 10 columns"),
        ("allreduce,,1,ring,ll,1,1,1", "min_bytes must be a whole number"),
        ("allreduce,0,1M,ring,ll,1,1,1", "max_bytes must be a whole number"),
        ("allreduce,0,18446744073709551616,ring,ll,1,1,1", "max_bytes"),
        ("allreduce,2,1,ring,ll,1,1,1", "max_bytes must be an integer of at least 2"),
        ("allreduce,0,1,ring,ll,-2,1,1", "channels"),
        ("allreduce,0,1,ring,ll,1,1,1,-1,2", "regBuff"),
        ("allgather,0,1,tree,ll,1,1,1", "NCCL never runs"),
        ("allreduce,0,1,ring,ll,1,1," + " " * 250 + "1", "255 bytes"),
    ],
)
def test_lines_that_nccl_would_misread_are_refused_by_number(line, words):
    with pytest.raises(FormatError, match=f"line 2: .*{words}|line 2 has .*{words}"):
        conf.loads(f"# header\n{line}\n")


def test_conf_cannot_hold_chunk_sizes():
    with pytest.raises(TuneError, match="no column for chunk_bytes=4096"):
        conf.dumps([NcclRule("all_reduce", 0, None, "ring", "ll", chunk_bytes=4096)])


# ---------------------------------------------------------------------- NCCLX


@pytest.mark.parametrize("form", ["csv8", "csv10", "json"])
@given(st.lists(rules(ranks=8, nodes=2), max_size=4), st.sampled_from((None, 4096)))
def test_ncclx_answers_as_the_rules_do_where_sizes_divide(form, given_rules, chunk):
    given_rules = [dataclasses.replace(rule, chunk_bytes=chunk) for rule in given_rules]
    if form == "csv8":
        any_op = {"pipelined_ops": None, "registered": None}
        given_rules = [dataclasses.replace(rule, **any_op) for rule in given_rules]
    text = {
        "csv8": ncclx.dumps_csv,
        "csv10": lambda r: ncclx.dumps_csv(r, columns=10),
        "json": ncclx.dumps_json,
    }[form](given_rules)
    read = ncclx.loads_json if form == "json" else ncclx.loads_csv
    back = read(text, ranks=8, nodes=2)
    for collective in COLLECTIVES:
        for nbytes in range(0, 420, 8):
            mine = answer(given_rules, collective, nbytes, 2, 8)
            theirs = answer(back, collective, nbytes, 2, 8)
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                settings = ("algorithm", "protocol", "channels", "chunk_bytes")
                assert all(getattr(mine, name) == getattr(theirs, name) for name in settings)
    assert read(text, ranks=8, nodes=1) == ()


@pytest.mark.parametrize(
    ("interval", "low", "high"),
    [
        ("*", 0, None),
        ("5", 40, 47),
        ("[2,4]", 16, 39),
        ("(2,4)", 24, 31),
        ("(2,4]", 24, 39),
        ("[2,4)", 16, 31),
        ("(1,)", 16, None),
        ("(,4]", 0, 39),
        (" [ 2 , 4 ] ", 16, 39),
        ("[-3,4]", 0, 39),
    ],
)
def test_intervals(interval, low, high):
    (rule,) = ncclx.loads_csv(f"allgather,{interval},ring,ll128,-1,*,*\n", ranks=8)
    assert (rule.min_bytes, rule.max_bytes) == (low, high)
    (same,) = ncclx.loads_json(
        json.dumps(
            {
                "rules": [
                    {
                        "filter": {"collective": "allgather", "bytesPerRank": interval.strip()},
                        "config": {"algorithm": "ring", "protocol": "ll128"},
                    }
                ]
            }
        ),
        ranks=8,
    )
    assert same == rule


def test_both_dialects_of_the_csv():
    base = "allreduce,*,ring,simple,4,1,8"
    assert ncclx.loads_csv(f"{base},65536", 8)[0].chunk_bytes == 65536
    assert ncclx.loads_csv(f"{base},-1", 8)[0].chunk_bytes is None
    ten = ncclx.loads_csv(f"{base},2,1,65536", 8)[0]
    assert (ten.pipelined_ops, ten.registered, ten.chunk_bytes) == (2, True, 65536)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("allreduce,[2,1],ring,ll,-1,*,*", "empty interval"),
        ("allreduce,[2,ring,ll,-1,*,*", "7 to 10 columns"),
        ("allreduce,[x,2],ring,ll,-1,*,*", "bytesPerRank must be"),
        ("allreduce,1.5,ring,ll,-1,*,*", "bytesPerRank must be a whole number"),
        ("allreduce,*,ring,ll,four,*,*", "channels must be a whole number"),
        ("allreduces,*,ring,ll,-1,*,*", "collective must be one of"),
        ("allreduce,*,rings,ll,-1,*,*", "algorithm must be one of"),
        ("allreduce,*,ring,ll,-1,*,*,-4096", "chunkSize must be a whole number"),
        ("allreduce,0,65536,tree,ll,-1,-1,-1", "nNodes must be a whole number"),
    ],
)
def test_lines_that_ncclx_refuses_are_refused(line, words):
    with pytest.raises(FormatError, match=f"line 1: .*{words}"):
        ncclx.loads_csv(line, ranks=8)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"rules": {}}', "must be a list"),
        ('{"rules": [{"filter": {}}]}', r"rules\[0\]\.config is missing"),
        ('{"rules": [{"filter": {}, "config": {}}]}', "collective is missing"),
        ('{"rules": [{"filter": {"nodes": 2}, "config": {}}]}', "no field 'nodes'"),
        ('{"rules": [{"filter": {"nNodes": [2]}, "config": {}}]}', "string or an integer"),
        ('{"rules": [', "cut short"),
    ],
)
def test_json_that_ncclx_refuses_is_refused(text, words):
    with pytest.raises(FormatError, match=words):
        ncclx.loads_json(text, ranks=8)


def test_rules_that_ncclx_cannot_say_are_refused():
    rule = NcclRule("all_reduce", 0, None, "ring", "ll", ranks=8)
    with pytest.raises(TuneError, match="a rule needs its ranks and its nodes"):
        ncclx.dumps_csv([rule])
    with pytest.raises(TuneError, match="8 ranks are not a multiple of 3 nodes"):
        ncclx.dumps_json([dataclasses.replace(rule, nodes=3)])
    with pytest.raises(TuneError, match="smaller than its number of ranks"):
        ncclx.dumps_csv([NcclRule("all_reduce", 1, 7, "ring", "ll", nodes=1, ranks=8)])
    with pytest.raises(TuneError, match="write columns=10"):
        ncclx.dumps_csv([dataclasses.replace(rule, nodes=1, pipelined_ops=2)])


# ---------------------------------------------------------------------- environment


def test_the_environment_takes_the_value_with_the_most_seconds_behind_it():
    table = Table()
    for nbytes, threads, transport, seconds in (
        (1, 128, "shm", 1.0),
        (2, 256, "p2p", 1.5),
        (3, 128, "shm", 1.0),
    ):
        config = nccl_config("ring", "simple", transport, 2, threads, 4096)
        table.choose(Task("all_reduce", nbytes, "float32", 8), DEFAULT, config, seconds, A40)
    ll128 = nccl_config("ring", "ll128", "shm", 2, 640, 4096)
    table.choose(Task("all_gather", 9, "float32", 8), DEFAULT, ll128, 0.1, A40)
    result = environment.environment(table, A40)
    assert result.variables == {
        "NCCL_LL128_NTHREADS": "640",
        "NCCL_NTHREADS": "128",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "0",
    }
    assert len(result.overruled) == 3
    assert all("all_reduce of 2 B float32 on 8 was tuned with" in line for line in result.overruled)
    text = str(result)
    assert text.startswith("# These variables are global")
    assert "export NCCL_NTHREADS=128\n" in text


@pytest.mark.parametrize(
    ("protocol", "threads"),
    [("simple", 32), ("simple", 544), ("ll", 100), ("ll128", 128), ("ll128", 672)],
)
def test_threads_that_nccl_replaces_are_refused(protocol, threads):
    table = Table()
    config = nccl_config("ring", protocol, "shm", 2, 256, 4096).replace(threads=threads)
    table.choose(Task("all_reduce", 1, "float32", 8), config, None, None, A40)
    with pytest.raises(TuneError, match=f"got threads={threads}"):
        environment.environment(table, A40)
