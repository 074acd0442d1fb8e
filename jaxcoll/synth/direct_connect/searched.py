"""All_gathers of small digraphs for which BFB is not optimal, stored as text.

An all_gather is bandwidth-optimal if all links carry equal amounts in every step and no rank is
sent a chunk twice or its own chunk (Theorem 5). Unlike in BFB, chunks may wait and take detours, so
an integer program finds such schedules where BFB has none.

Digraphs that are not isomorphic to their transpose have a second schedule, an all_gather of the
transpose, which is their reduce_scatter run backwards (Corollary 1.2). The integer program found
each of them in less than 20 s, except for DBJMod(2,4), which took half a minute
(``tests/synth/direct_connect/balanced_search.py``).
"""

from __future__ import annotations

import functools

import numpy as np

from jaxcoll.bounds.moore import Cost, bandwidth_optimum
from jaxcoll.schedule import Schedule
from jaxcoll.synth.direct_connect.bfb import bfb_cost
from jaxcoll.synth.direct_connect.columns import Gather, Sends
from jaxcoll.synth.direct_connect.expansions import bfb_all_gather
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.kautz_graphs import diamond, modified_de_bruijn
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH

# There is one row per vertex, one word per chunk of its shard, and one character per vertex u: step
# * d + i, in base 36, if u receives the chunk over its i-th in-arc in that step. A point stands for
# the vertex itself.
_ROWS = {
    "Diamond": """
        .0024244 .0022254
        4.104425 4.102425
        34.50052 35.50052
        025.5303 042.4505
        1224.413 1445.314
        25413.40 25415.40
        435351.1 535331.1
        5134153. 5134153.
    """,
    "DBJMod(2,3)": """
        .4072275 .0326447
        7.526744 4.102422
        23.70275 67.34053
        374.5520 457.3302
        2134.666 0224.666
        56617.53 56657.31
        657533.7 735311.4
        3446571. 1226453.
    """,
    "DBJMod(2,4)": """
        .029405566829966 .084706888288897
        9.00872477994496 8.00256266688749
        87.8015529926696 95.6017826249875
        897.890075972452 677.980055772529
        2695.46600688888 6344.76600888888
        99999.3377004967 97973.8744009973
        456689.939530097 789758.883390075
        3486947.99653300 3468797.88553300
        01226546.8666689 01426277.8848888
        781163928.867944 991123296.466697
        7857179992.77531 8977198862.99731
        78999811777.5224 56889611997.6272
        833387461199.688 263346841188.966
        6879393344119.69 5688769788117.53
        49556687337311.8 67895899563711.9
        126872999946771. 126688889799571.
    """,
    "DBJMod(3,2)": """
        .30046638 .03037666 .00843633
        7.4400348 6.1406883 7.1880438
        58.747550 77.514305 87.414700
        032.76883 317.33777 012.63766
        4867.1084 6481.5077 3451.1464
        45756.115 58665.111 56668.451
        124332.47 153375.76 824882.44
        3652243.5 6452785.2 8785285.2
        26375782. 45766825. 23835522.
    """,
    "DBJMod(4,2)": """
        .080484abbbb4444 .5400988bb888444 .004444a89888888 .5040599a984a888
        a.5950509a695a59 9.1a940649a5999a 8.195054aa44999b a.5a94004a555a5a
        ba.a91556040a5aa 89.9669ba044a9ab 9a.a95995406a96b ba.a91555500a569
        788.779979b70004 abb.bbab777a440a 788.7799b9bb8070 679.88b8bbbb0640
        4121.599944a44a8 b561.888b88bb444 0924.599944a88a8 0155.44a89988888
        45651.19a5958888 49651.6581a99889 89a95.11a55599a9 8ba95.61916a5aa9
        9696a8.60616abb6 bababb.26a5165aa aabaaa.246165ab5 b696b8.60a5165b7
        bb7bb9b.5a261615 abbbaaa.b77a5a15 abb7bbb.9a6a7751 9b77b9b.5a261761
        52528984.8a877b2 56928888.bbbb844 14464888.888bbb6 12474b84.8a877b2
        856b26239.6abb55 486529678.998899 89ab52a39.6abb55 89a96226a.5599ab
        89a9666792.26a6b 9aa966a752.7a92a 9abbaaab16.26a67 969baa8b16.7bb26
        7b887b7a6b9.7173 b77bb9b8288.26b7 5698b8b82bb.7573 6778797a689.21b7
        24349589a484.68b 6358894488a8.299 2474977a8898.288 63389444a4a4.69b
        3448373649a99.9a 48a5377a89998.88 7888735585999.99 3448433545899.9a
        58868a673373bb.6 99aa669773a7a9.b 58868aab363bbb.6 aabbaaab67336a.7
        a797aaab77773b3. bbb3abbb777b473. 67978bb8bbbb337. 78838b7abbb9437.
    """,
    "Diamond^T": """
        .5200553 .5400245
        0.542340 0.442340
        10.24452 10.24452
        215.4024 215.5024
        3405.531 3404.531
        52153.05 42133.04
        432114.3 434112.5
        5435511. 5533511.
    """,
    "DBJMod(3,2)^T": """
        .76056067 .78057050 .65368660
        0.6137736 0.8683183 8.8163164
        50.286467 10.368783 16.236376
        564.08605 277.06338 287.64806
        3106.7618 3176.7646 7808.4815
        82644.277 64871.284 82341.477
        783820.48 655780.81 646728.71
        4316717.8 4815815.2 7648758.2
        65777282. 77284252. 83257575.
    """,
    "DBJMod(4,2)^T": """
        .99a049a04b8b04b .ba4baa50b4808a8 .98b04bb89a680b6 .bbb4ab58ba508b5
        0.bb48b9b8a519b5 0.981b8544881489 b.a914581a48b5aa b.a858b8184459a9
        18.82b9944994499 a4.468b9b8a529b5 10.85899488a4489 90.b289958882585
        798.349b698b8584 2ab.485b28b44940 2bb.4ab77ba78980 7a9.3b5b24b48844
        7959.7a8805a85aa 3595.0b985967198 3999.09945894489 7985.7ba80b67158
        a805b.aaa15ab258 b18b5.9b588bb286 59088.a881596aa9 41888.9955895a89
        429881.995995899 824991.a52b8b65a 985bab.bb256b3b6 869b9b.bb6997396
        854a928.93ba965b 4398584.97995899 8549920.969aa69a 43598a0.939ab79a
        aa66b964.a08ab08 868a951a.6949b4b 9b6aa964.a00ab7b 987aa516.980ab0b
        995ba7a6b.7baa17 b41a636a9.196a6b 8549a3aa9.1a966a b41667a8a.796a18
        b8266880a8.ba927 58298b2886.a879a 87ab96a0b9.b9a27 86a9952899.a976a
        868a953a992.9b6b 9866a934aa2.b738 58388a868bb.6837 543a897a8ab.987b
        aab7b978aa61.ba1 b8707a877ba1.9b1 678096816988.a88 aa84b641a9a5.ab8
        bbb178b778a7b.b2 aab5b978aa627.7b abb4ba977ba73.b2 abb1ba856b623.aa
        6ba28aa66b7b88.4 a7a7bb42a7379b.3 9a67a964ab3bab.3 b7a27b42b77b99.4
        6b937b833798899. 997aa683b9b3aa7. 6aa3895b3a4b88a. 9a77a97bba63aba.
    """,
    "DBJMod(2,4)^T": """
        .879846308372690 .967279308656780
        0.87698519772862 0.69289718496694
        20.8366960485686 80.6794830863969
        418.594661863948 216.388731694864
        6208.87652085258 4206.85982087286
        18184.6826684868 18194.8526776982
        876059.693807359 635063.856806578
        6381799.73818798 5771837.67919396
        96280727.4940725 86480869.8680847
        964716849.271927 842416287.261479
        9659903496.49039 3936603848.68079
        39866159499.8176 64399196847.9135
        959287097992.707 979597029795.907
        7874951787529.13 8592861279598.13
        77959490973996.1 79837580857378.1
        599782716919849. 787372718513758.
    """,
}


def base_all_gather(digraph: Digraph, alpha=ALPHA, link_bandwidth=BANDWIDTH) -> Schedule:
    """The best known all_gather of a base: a searched one of Table A.3, else the best BFB one.

    Args:
        digraph: any digraph; schedules were searched for ``diamond()`` and
            ``modified_de_bruijn(...)``.
        alpha: seconds per link.
        link_bandwidth: bytes per second per link.
    """
    found = searched_all_gather(digraph)
    if found is None:
        return bfb_all_gather(digraph, alpha, link_bandwidth)
    return found.write(alpha, link_bandwidth, "searched")


def base_cost(digraph: Digraph) -> Cost:
    """T_L and T_B of ``base_all_gather``."""
    found = searched_all_gather(digraph)
    if found is None:
        return bfb_cost(digraph)
    return Cost(found.steps, bandwidth_optimum(digraph.size))


def searched_all_gather(digraph: Digraph) -> Gather | None:
    """The searched all_gather of a digraph, if one is stored here."""
    for name, known in _digraphs().items():
        if (
            (known.size, known.degree) == (digraph.size, digraph.degree)
            and np.array_equal(known.tails, digraph.tails)
            and np.array_equal(known.heads, digraph.heads)
        ):
            rows = _ROWS[name].split()
            codes = np.asarray([[-1 if u == "." else int(u, 36) for u in row] for row in rows])
            row, receiver = np.nonzero(codes >= 0)
            step, place = np.divmod(codes[row, receiver], known.degree)
            chunks = len(rows) // known.size
            owner, index = np.divmod(row, chunks)
            sends = Sends.of(step, known.in_arcs[receiver, place], owner, index)
            return Gather(known, chunks, int(step.max()) + 1, sends)
    return None


@functools.cache
def _digraphs() -> dict[str, Digraph]:
    rewired = (modified_de_bruijn(d, n) for d, n in ((2, 3), (2, 4), (3, 2), (4, 2)))
    known = (diamond(), *rewired)
    return {
        g.name: g for digraph in known for g in (digraph, digraph.transpose()) if g.name in _ROWS
    }
