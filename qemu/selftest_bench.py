# SPDX-License-Identifier: GPL-2.0
"""Tests of the benchmark's own code: what it reads out of the tools' output, how it judges, and its page."""
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCH = HERE / "bench"
sys.path[:0] = [str(BENCH), str(HERE)]
import goals  # noqa: E402
import plots  # noqa: E402
import points  # noqa: E402
import report  # noqa: E402
import stored_table  # noqa: E402
import tables  # noqa: E402

BANDWIDTH = """\
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      3000             2305.07            2295.41            0.036727
"""
SMALL = """\
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 8          4800             0.56               0.05             0.006358
"""
LATENCY = """\
#, usec
1, 10.5
2, 11.5
3, 12.5
4, 99.0
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 4096      4          10.50          99.00      12.50            33.38            22.21            99.00           99.00
"""
CMTIME = """\
Connect (1000) QPs test
qp_conn              1000
threads                 1
step             avg/iter  total(us)    us/conn    sum(us)    max(us)    min(us)
full connect         5000     500000          0          0    3553430     444229
create id             770      77030        372      37240      17652         15
Connect (1000) test - no QPs
cm_conn              1000
threads                 1
full connect         1000     100000          0          0    3553430     444229
"""
OBJECTS = """\
create_pd 9870
destroy_pd 1200
mw error 95 after 0
create_mr.1G 56192819
rereg_mr.4K 2500
rereg mr.4K error 95 after 0
doorbell 1500
arm 7800
wakeup 12250
memory_qp.16 21385
full_qp.16 22001
memory_mr.1G -12
"""


def load_bench():
    loader = SourceFileLoader("bench_program", str(BENCH / "bench"))
    module = module_from_spec(spec_from_loader("bench_program", loader))
    loader.exec_module(module)
    return module


def result(**drivers):
    """The values of each driver at a point."""
    return {driver: values for driver, values in drivers.items()}


def data_of(results, drivers=("rdma_rxe", "rxe_rs"), **more):
    return {"release": "7.2", "machine": "uml", "rounds": 3, "drivers": list(drivers), "host": {"cpus": 2, "cpu": "x"}, "revision": "r",
            "date": "d", "seconds": 1, "notes": [], "results": report.summarise(results), **more}


class Points(unittest.TestCase):
    def test_names_are_unique_and_of_known_kinds(self):
        names = [point for run in points.all_runs() for point in run.points]
        self.assertEqual(len(names), len(set(names)))
        for name in names:
            self.assertIn(points.kind_of(name), points.KINDS)
            self.assertRegex(name, r"^[\w-]+\.[\w.-]+$")

    def test_each_goal_has_all_its_lines(self):
        """The points of a goal are those of all sizes and modes that it is about, and no others."""
        def names(text):
            """All combinations: words in braces are alternatives."""
            found = re.search(r"\{([^{}]*)\}", text)
            if not found:
                return {text}
            return set().union(*(names(text[:found.start()] + word + text[found.end():]) for word in found[1].split("|")))
        large, small = "{send|write|read}_bw.{64K|1M}.poll", "_rate.{8|4K}"
        wanted = {
            "64 KiB, 1 MiB polled; posted lists; bidirectional": names(large + "{|-l16|-b}"),
            # perftest has no WRITE with completion events.
            "the same, event driven": names("{send|read}_bw.{64K|1M}.event{|-l16|-b}"),
            "kernel consumers, 8 B and 4 KiB": names("kernel-{send|write|read}" + small + ".d{1|32|128}"),
            "kernel consumers, 64 KiB and 1 MiB": names("kernel-{send|write|read}_bw.{64K.d32|1M.d8}"),
            "user messages 8 B and 4 KiB, 1 and 16 QPs, lists":
                names("{send|write|read}" + small + ".poll{|-q16|-l16}") | names("{send|read}" + small + ".event{|-q16|-l16}"),
            "latency 64 KiB": names("{send|write|read}_lat.64K.poll") | names("{send|read}_lat.64K.event"),
            "kernel ping-pong 8 B and 4 KiB": names("kernel-pingpong_lat.{8|4K}.d1"),
            "latency 2 B and 4 KiB of processes": names("{send|write|read}_lat.{2|4K}.poll") | names("{send|read}_lat.{2|4K}.event"),
            "without USO, 64 KiB and 1 MiB": names(large + "-nouso"),
            "objects: creation, re-registration and destruction":
                names("{kernel-{pd|cq|qp|mr|ah}_{create|destroy}.d16|{pd|mw|ah}_{create|destroy}.user|cq_{create|destroy}.128}")
                | names("{qp_{create|destroy}.16|mr_{create|destroy}.{4K|1M|1G}|mr_rereg.4K}"),
            "memory of QPs and CQs, connected and idle": names("qp_memory.{16|128}") | {"cq_memory.128"},
            "memory of QPs with full queues": names("qp_memory.{16|128}.full"),
            "memory of MRs of 4 KiB and 1 GiB": names("mr_memory.{4K|1G}"),
            "10,000 QPs, share of the rate of 100": names("kernel-qps_rate.{64|4K}.10000"),
            "p99 of an idle QP beside load": names("kernel-beside_p99.{stream|1000qps}"),
        }
        for share in ("0.1", "1", "3"):
            wanted[f"loss {share} %, share of loss-free bandwidth"] = names(f"{{send|write|read}}_bw.64K.poll-loss{share}")
        wanted["reordering 1 %, share of bandwidth without"] = names("{send|write|read}_bw.64K.poll-reorder1")
        all_points = {point for run in points.all_runs() for point in run.points}
        for goal in goals.GOALS:
            if goal.title in wanted:
                self.assertEqual({point for point in all_points if re.fullmatch(goal.pattern, point)}, wanted.pop(goal.title), goal.title)
        self.assertEqual(wanted, {})
    def test_perftest(self):
        large = points.Perftest("send", "64K", "poll")
        self.assertEqual(large.values("rxe_rs", BANDWIDTH), {"send_bw.64K.poll": 2295.41})
        small = points.Perftest("write", "8", "poll", variant="q16")
        self.assertEqual(small.values("rxe_rs", SMALL), {"write_rate.8.poll-q16": 6358})
        self.assertEqual(small.values("rxe_rs", SMALL.replace("0.006358", "0.000000")), {})
        self.assertEqual(large.values("rxe_rs", SMALL), {})
        self.assertEqual(large.values("rxe_rs", ""), {})

    def test_latency_and_its_distribution(self):
        run = points.Perftest("send", "4K", "poll", latency=True)
        self.assertEqual(run.values("siw", LATENCY), {"send_lat.4K.poll": 12.5})
        shares = dict(zip(points.PERCENTILES, run.distribution(LATENCY)))
        self.assertEqual((shares[1], shares[50], shares[100]), (10.5, 12.5, 99.0))
        self.assertIsNone(run.distribution("nothing"))

    def test_commands(self):
        lists = points.Perftest("send", "64K", "event", variant="l16").command("siw", 10)
        self.assertEqual(lists[:3] + lists[3:4], ["ib_send_bw", "-s", "65536", "-e"])
        self.assertEqual(int(lists[lists.index("-n") + 1]) % 16, 0)
        self.assertIn("-D", points.Perftest("read", "64K", "poll", network="loss1").command("rxe_rs", 1))
        self.assertIsNone(points.Perftest("read", "64K", "poll").command("tcp", 1))
        self.assertIsNone(points.Perftest("send", "64K", "poll", variant="b").command("tcp", 1))
        self.assertIsNone(points.Perftest("send", "64K", "poll", network="nouso").command("limit", 1))
        self.assertEqual(points.Perftest("send", "1M", "poll").command("limit", 1)[:2], ["limit", "size=1048576"])

    def test_stream_tools(self):
        run = points.Perftest("send", "64K", "poll")
        text = json.dumps({"end": {"sum_received": {"bits_per_second": 8 * 2**20 * 100}}})
        self.assertEqual(run.values("tcp", text), {"send_bw.64K.poll": 100})
        self.assertEqual(run.values("limit", "limit: bw 6130\n"), {"send_bw.64K.poll": 6130})
        self.assertEqual(run.values("limit", "limit: error -5\n"), {})
        latency = points.Perftest("send", "2", "poll", latency=True)
        self.assertEqual(latency.values("tcp", "    latency  =  12,500 ns\n"), {"send_lat.2.poll": 12.5})

    def test_kernel(self):
        self.assertEqual(points.Kernel("write", "4K", 32, 10).values("rxe_rs", "kbench: write 5000\n"), {"kernel-write_rate.4K.d32": 200000})
        self.assertEqual(points.Kernel("read", "1M", 8, 10).values("rxe_rs", "kbench: read 1000000\n"), {"kernel-read_bw.1M.d8": 1000})
        self.assertEqual(points.Kernel("pingpong", "8", 1, 10).values("rxe_rs", "kbench: pingpong 2500\n"), {"kernel-pingpong_lat.8.d1": 2.5})
        self.assertEqual(points.Kernel("write", "8", 1, 10).values("rxe_rs", "kbench: write: error -5\n"), {})
        self.assertEqual(points.KernelIdle(100).values("rxe_rs", "kbench: softirqs 0\n"), {"kernel-qps_softirqs.100": 0})
        self.assertEqual(points.KernelBeside("x", 1, "4K", 1).values("rxe_rs", "kbench: p50 9\nkbench: p99 2000\n"),
                         {"kernel-beside_p99.x": 2})

    def test_processor_time(self):
        run = points.Metered("send", "1M", 24, 1048)
        text = "metered 3 24 1048\nmeter 3 10.0\nmeter 4 10.5\nmeter 5 12.0\n"
        self.assertEqual(run.values("rxe_rs", text), {"send_cpu.1M.event": 1.0})
        self.assertEqual(run.values("rxe_rs", text.replace("meter 4", "meter 9")), {})

    def test_connects_and_objects(self):
        self.assertEqual(points.Connects(1000).values("rxe_rs", CMTIME), {"cm_connects.1000": 2000})
        self.assertEqual(points.Connects(1000).values("rxe_rs", "event: RDMA_CM_EVENT_REJECTED, error: 28\n"), {})
        self.assertEqual(points.Objects("time").values("rxe_rs", OBJECTS),
                         {"pd_create.user": 9.87, "pd_destroy.user": 1.2, "mr_create.1G": 56192.819, "mr_rereg.4K": 2.5,
                          "doorbell_lat.empty": 1.5, "arm_lat.cq": 7.8, "wakeup_lat.process": 12.25})
        self.assertEqual(points.Objects("memory").values("rxe_rs", OBJECTS),
                         {"qp_memory.16": 21385, "qp_memory.16.full": 22001, "mr_memory.1G": 0})
        for name in ("mw_create.user", "mr_rereg.4K", "doorbell_lat.empty"):
            self.assertNotIn(name, points.Objects("time").expected("siw"))
            self.assertIn(name, points.Objects("time").expected("rdma_rxe"))

    def test_peer(self):
        """Both ends are compared with the same two rdma_rxe; what failed is missing, not zero."""
        run = points.Peer("write", "loss1")
        self.assertEqual(run.points, ["write_bw.64K.client-loss1", "write_bw.64K.server-loss1"])
        self.assertEqual(run.measurement(1), ["500", "ib_write_bw"])
        self.assertEqual(run.measurement(10), ["100", "ib_write_bw"])
        self.assertEqual(points.Peer("send", "loss0.1").measurement(10), ["200", "ib_send_bw", "-e"])
        outputs = {pair: BANDWIDTH.replace("2295.41", rate) for pair, rate in zip(points.Peer.PAIRS, ("2.50", "10.00"))}
        self.assertEqual(run.compared(outputs), {
            (run.points[0], "rdma_rxe"): 2.5, (run.points[0], "rxe_rs"): 10.0, (run.points[1], "rdma_rxe"): 2.5, (run.points[1], "rxe_rs"): None})
        self.assertEqual(points.Peer.PAIRS[1:], (("rxe_rs", "rdma_rxe"), ("rdma_rxe", "rxe_rs")))

    def test_lists_agree_with_the_program(self):
        """The objects of points.py are those of ktests/objects."""
        table = (HERE.parent / "ktests/objects/objects.c").read_text().split("kinds[] = {", 1)[1].split("};", 1)[0]
        named = set(re.findall(r'\{ "(\w+)"', table))
        self.assertEqual(named, {thing.split(".")[0] for thing in points.Objects.TIMED})
        changed = re.findall(r'\{ "(\w+)", (\d+)ul << 10, .*"rereg"', table)
        self.assertEqual([f"{name}.{kib}K" for name, kib in changed], list(points.Objects.REREGISTERED))

    def test_quick_form_shows_every_goal(self):
        """A full run has points for all goals; a quick run, which takes four minutes, for all but those listed here."""
        full = {goal.title for goal in goals.GOALS if any(re.fullmatch(goal.pattern, p) for run in points.all_runs() for p in run.points)}
        self.assertEqual(full, {goal.title for goal in goals.GOALS})
        quick = [p for run in points.all_runs() if run.quick for p in run.points]
        missing = {goal.title for goal in goals.GOALS if not any(re.fullmatch(goal.pattern, p) for p in quick)}
        self.assertEqual(missing, {"softirqs of 10,000 idle QPs", "loss 0.1 %, share of loss-free bandwidth",
                                   "loss 3 %, share of loss-free bandwidth", "reordering 1 %, share of bandwidth without",
                                   "loss and reordering, the client of rdma_rxe", "loss and reordering, the server of rdma_rxe"})

    def test_quick_form_stays_short(self):
        """So many runs of both rounds, one for each driver, took 3 min 49 s on a host with two processors; runs with many queue pairs, with
        connections or with metered processor time take several times as long as the others."""
        quick = [run for run in points.all_runs() if run.quick]
        self.assertLessEqual(sum(run.quick for run in quick), 61)
        long = [run for run in quick if isinstance(run, (points.KernelMany, points.KernelIdle, points.Metered, points.Connects))]
        self.assertLessEqual(sum(run.quick for run in long), 4)


class Judgement(unittest.TestCase):
    def judged(self, results, drivers=("rdma_rxe", "rxe_rs")):
        data = data_of(results, drivers)
        return {goal.title: (values, worst) for goal, values, worst in goals.judge(data)}

    def test_ratio_and_worst(self):
        found = self.judged({"send_bw.64K.poll": result(rdma_rxe=[100, 100, 100], rxe_rs=[300, 500, 400]),
                             "read_bw.1M.poll-b": result(rdma_rxe=[100], rxe_rs=[390])})
        values, worst = found["64 KiB, 1 MiB polled; posted lists; bidirectional"]
        self.assertEqual(values, {"send_bw.64K.poll": 4.0, "read_bw.1M.poll-b": 3.9})
        self.assertEqual(worst, "read_bw.1M.poll-b")
        text = report.text(data_of({"send_bw.64K.poll": result(rdma_rxe=[100], rxe_rs=[390])}))
        self.assertRegex(text, r"64 KiB, 1 MiB polled.*>= 4 +3\.90 +send 64K poll +0 of 1 MISSED")

    def test_against_itself(self):
        found = self.judged({"send_bw.64K.poll-loss0": result(rxe_rs=[1000]), "send_bw.64K.poll-loss1": result(rxe_rs=[840]),
                             "kernel-qps_rate.64.100": result(rxe_rs=[100]), "kernel-qps_rate.64.10000": result(rxe_rs=[90])})
        self.assertEqual(found["loss 1 %, share of loss-free bandwidth"][0], {"send_bw.64K.poll-loss1": 0.84})
        self.assertEqual(found["10,000 QPs, share of the rate of 100"][0], {"kernel-qps_rate.64.10000": 0.9})

    def test_tcp_and_limit_apply_to_each_operation(self):
        found = self.judged({"send_bw.1M.poll": result(rxe_rs=[80], tcp=[100], limit=[160]), "read_bw.1M.poll": result(rxe_rs=[60]),
                             "read_bw.1M.poll-l16": result(rxe_rs=[60]), "kernel-read_bw.1M.d8": result(rxe_rs=[60])},
                            ("rxe_rs", "tcp", "limit"))
        self.assertEqual(found["1 MiB against TCP"][0], {"send_bw.1M.poll": 0.8, "read_bw.1M.poll": 0.6})
        self.assertEqual(found["1 MiB, share of the limit"][0], {"send_bw.1M.poll": 0.5, "read_bw.1M.poll": 0.375})
        data = data_of({"send_bw.1M.poll": result(tcp=[1])}, ("tcp",))
        self.assertIsNone(goals.entry_of(data, "read_bw.1M.poll-l16", "tcp"))
        self.assertIsNone(goals.entry_of(data, "kernel-read_bw.1M.d8", "tcp"))

    def test_failed_point_is_shown(self):
        text = report.text(data_of({"send_bw.64K.poll": result(rdma_rxe=[None, None], rxe_rs=[1, 2])}))
        self.assertIn("failed", text)

    def test_load_is_reported(self):
        load = [{"round": 1, "driver": "siw", "before": 0.1, "after": 0.2, "foreign": 0.2}]
        self.assertIn("WARNING: others used 20%", report.text(data_of({}, load=load)))
        self.assertNotIn("WARNING", report.text(data_of({}, load=[{**load[0], "foreign": 0.01}])))


class Comparison(unittest.TestCase):
    def found(self, new, old):
        return {point if variant == "rxe_rs" else (point, variant): factor
                for point, variant, factor in report.differences(data_of(new), data_of(old))}

    def test_regressions_beyond_noise(self):
        point = "send_bw.64K.poll"
        self.assertEqual(self.found({point: result(rxe_rs=[80, 82, 84])}, {point: result(rxe_rs=[98, 100, 102])}), {point: 0.82})
        self.assertEqual(self.found({point: result(rxe_rs=[80, 82, 99])}, {point: result(rxe_rs=[98, 100, 102])}), {})
        self.assertEqual(self.found({point: result(rxe_rs=[97, 97, 97])}, {point: result(rxe_rs=[100, 100, 100])}), {})

    def test_less_is_better(self):
        point = "send_lat.2.poll"
        self.assertEqual(self.found({point: result(rxe_rs=[20])}, {point: result(rxe_rs=[10])}), {point: 0.5})
        self.assertEqual(self.found({point: result(rxe_rs=[10])}, {point: result(rxe_rs=[20])}), {point: 2.0})

    def test_slower_host_is_no_regression(self):
        point = "send_bw.64K.poll"
        new, old = result(rdma_rxe=[50], rxe_rs=[200]), result(rdma_rxe=[100], rxe_rs=[400])
        self.assertEqual(self.found({point: new}, {point: old}), {})
        memory = "qp_memory.16"
        found = self.found({point: new, memory: result(rxe_rs=[200])}, {point: old, memory: result(rxe_rs=[100])})
        self.assertEqual(found, {memory: 0.5})

    def test_our_variants(self):
        """Each is compared with itself, and none is another driver, by which the host would be judged."""
        point = "send_bw.64K.poll"
        old, new = result(rdma_rxe=[100], **{"rxe_rs+icrc": [200]}), result(rdma_rxe=[100], **{"rxe_rs+icrc": [100]})
        self.assertEqual(self.found({point: new}, {point: old}), {(point, "rxe_rs+icrc"): 0.5})

    def test_losses_do_not_judge_the_host(self):
        point, lossy = "send_bw.64K.poll", "send_bw.64K.server-loss0.1"
        new = {point: result(rdma_rxe=[100], rxe_rs=[200]), lossy: result(rdma_rxe=[50])}
        old = {point: result(rdma_rxe=[100], rxe_rs=[200]), lossy: result(rdma_rxe=[5])}
        self.assertEqual(self.found(new, old), {})

    def test_values_of_zero(self):
        softirqs, memory = "kernel-qps_softirqs.10000", "mr_memory.1G"
        none, some = {softirqs: result(rxe_rs=[0, 0])}, {softirqs: result(rxe_rs=[4, 5])}
        self.assertEqual(self.found(some, none), {softirqs: 0})
        self.assertEqual(self.found(none, some), {softirqs: math.inf})
        self.assertEqual(self.found(none, none), {})
        self.assertEqual(self.found({memory: result(rxe_rs=[0, 900])}, {memory: result(rxe_rs=[0, 700])}), {})
        self.assertEqual(self.found({memory: result(rxe_rs=[8000, 9000])}, {memory: result(rxe_rs=[0, 700])}), {memory: 350 / 8500})

    def test_text(self):
        point = "send_bw.64K.poll"
        text = report.comparison(data_of({point: result(rxe_rs=[50])}), data_of({point: result(rxe_rs=[100])}))
        self.assertIn("REGRESSION send 64K poll (bw): 100 -> 50, 0.50 times as good", text)


class Page(unittest.TestCase):
    def data(self):
        results = {f"send_{points.amount_kind(size)}.{size}.poll": result(rxe_rs=[10 * n + 1], rdma_rxe=[n + 1])
                   for n, size in enumerate(points.COUNTS)}
        results["kernel-qps_rate.64.100"] = result(rxe_rs=[5], rdma_rxe=[4])
        results["send_bw.64K.poll-loss1"] = result(rxe_rs=[5], rdma_rxe=[None])
        results["send_bw.64K.server-loss1"] = result(rxe_rs=[6], rdma_rxe=[7])
        shares = {"send_lat.2.poll": {"rxe_rs": list(range(1, len(points.PERCENTILES) + 1))}}
        return data_of(results, distributions=shares)

    def test_page_is_self_contained(self):
        try:
            import pygal  # noqa: F401
        except ImportError:
            self.skipTest("python3-pygal is missing")
        page = plots.page(self.data(), "tables <b>")
        self.assertEqual(page.count("<svg"), 6)
        self.assertIn("tables &lt;b&gt;", page)
        self.assertNotRegex(page, r"""(src|href)\s*=\s*["'](https?:)?//""")
        self.assertNotRegex(page, r"@import|url\(")

    def test_one_plot(self):
        try:
            import pygal  # noqa: F401
        except ImportError:
            self.skipTest("python3-pygal is missing")
        title = next(chart[0] for chart in plots.charts(self.data()) if plots.draw(*chart))
        self.assertRegex(plots.one(self.data(), title), f"(?s)^<svg .*{title}.*</svg>$")

    def test_peer(self):
        chart, = (chart for chart in plots.charts(self.data()) if chart[0] == "SEND 64K with rdma_rxe as the peer: MiB/s")
        self.assertEqual(chart[2:4], (["loss 0.1 %", "loss 1 %", "loss 3 %", "reordered"], {
            "two rdma_rxe": [None] * 4, "rxe_rs at the client": [None] * 4, "rxe_rs at the server": [None, 6, None, None]}))

    def test_sizes_are_comparable(self):
        data = self.data()
        self.assertEqual(plots.over_size(data, "rdma_rxe", "send", "rate")[0], 1)
        self.assertEqual(plots.over_size(data, "rdma_rxe", "send", "bw")[0], 8 / 2**20)
        last = len(points.COUNTS)
        self.assertEqual(plots.over_size(data, "rdma_rxe", "send", "rate")[-1], last)

    def test_scale(self):
        self.assertEqual(plots.scale([3, 40], True)["y_labels"], [2, 5, 10, 20, 50])
        self.assertEqual(plots.scale([0.5, 0.5], True)["range"], (0.5, 0.5))
        self.assertEqual(plots.scale([3, 40], False), {"range": (0, 40)})

    def test_merged(self):
        self.assertEqual(load_bench().merged([[1, 9], [2, 8], [9, 7]]), [2, 8])


class Stored(unittest.TestCase):
    """docs/bench.json, which tables.py wrote."""
    DATA = json.loads(tables.STORED.read_text())

    def test_tables_are_of_the_stored_run(self):
        for path, head, table in tables.TABLES:
            lines = path.read_text().split("\n")
            start, end = stored_table.place(lines, head)
            self.assertEqual(lines[start:end], table(self.DATA), f"{path.name}: run qemu/bench/tables.py")

    def test_plot_is_of_the_stored_run(self):
        if reason := plots.missing():
            self.skipTest(reason)
        drawn, kept = (re.findall(r'<desc class="value">([^<]*)<', svg)
                       for svg in (plots.one(self.DATA, "WRITE: MiB/s"), (HERE.parent / "docs/write-bandwidth.svg").read_text()))
        self.assertGreater(len(kept), 30)
        self.assertEqual(kept, drawn)

    def test_shares_of_the_limit(self):
        """Half a doorbell and half of the payload's time if messages pass both ways; a sixteenth of a doorbell in lists of 16. A latency does
        not contain a whole doorbell, but the call that arms the CQ if there are events."""
        def results(**by_point):
            return {"results": {point.replace("__", ".").replace("kernel_", "kernel-"): {driver: {"median": value} for driver, value in drivers.items()}
                                for point, drivers in by_point.items()}}
        data = results(doorbell_lat__empty={"rxe_rs": 8.0}, arm_lat__cq={"rxe_rs": 7.0},
                       send_lat__2__poll={"rxe_rs": 6.5}, kernel_pingpong_lat__8__d1={"rxe_rs": 2.5},
                       send_bw__64K__poll={"limit": 62500 / 10}, send_bw__1M__poll={"limit": 5000})
        for point, least in (("read_rate.8.event", 8), ("send_rate.4K.poll-q16", 8), ("send_rate.8.poll-l16", 0.5), ("send_lat.2.poll", 4),
                             ("read_lat.4K.poll", 4), ("send_lat.2.event", 11), ("write_lat.64K.poll", 14), ("send_lat.64K.event", 21),
                             ("write_bw.64K.poll", 18), ("read_bw.64K.event-b", 9), ("read_bw.1M.poll", 208)):
            self.assertAlmostEqual(tables.limit(data, point), least, 3, point)
        names = ("rdma_rxe", "rxe_rs", "rxe_rs+icrc")
        data["results"] |= results(write_bw__64K__poll=dict(zip(names, (1250, 3125, 2500))), read_bw__64K__poll=dict(zip(names, (1250, 5000, 1250))),
                                   send_lat__2__event=dict(zip(names, (20, 16, 32))))["results"]
        self.assertEqual(tables.shares(data, "rdma_rxe")[2:], ["| WRITE, 64 KiB, polled | 50.0 | 12.5 | 18.0 | 20.0 | 0.90 | 0.72 |",
                                                               "| latency of SEND, 2 B, events | 20.0 | 14.0 | 11.0 | 16.0 | 0.69 | 0.34 |"])
        for drivers in data["results"].values():
            if "rdma_rxe" in drivers:
                drivers["siw"] = drivers["rdma_rxe"]
        # Of the two goals of a latency the one that wants more. The goal of the bandwidth is met.
        self.assertEqual(tables.shares(data, "siw")[2:], ["| latency of SEND, 2 B, events | 20.0 | 13.4 | 11.0 | 16.0 | 0.69 | 0.34 |"])

    def test_run_was_a_whole_one(self):
        self.assertEqual(set(self.DATA["results"]), {point for run in points.all_runs() for point in run.points})
        self.assertEqual({goal.title for goal, _, _ in goals.judge(self.DATA)}, {goal.title for goal in goals.GOALS})
        self.assertGreaterEqual(set(self.DATA["drivers"]), {"rdma_rxe", "siw", "rxe_rs", "rxe_rs+icrc", "tcp", "limit"})
        self.assertEqual([turn for turn in self.DATA["load"] if turn["foreign"] > report.FOREIGN], [], "the host had other work")

    def test_no_path_of_the_host(self):
        data = data_of({}, ("rxe_rs",)) | {"notes": ["round 1: see /home/user/out/turns/log"], "distributions": {}}
        self.assertEqual(json.loads(tables.stored(data, "/home/user/out"))["notes"], ["round 1: see turns/log"])
        self.assertNotRegex(tables.STORED.read_text(), r"[ \"]/\w+/")


class Programs(unittest.TestCase):
    """report.py, plots.py and tables.py with arguments of users."""

    def run_program(self, name, *arguments):
        return subprocess.run([sys.executable, BENCH / name, *map(str, arguments)], capture_output=True, text=True)

    def test_wrong_arguments(self):
        """The last line says what is wrong, and tables.py writes nothing."""
        before = [path.read_bytes() for path in (tables.STORED, *(path for path, _, _ in tables.TABLES))]
        with tempfile.TemporaryDirectory() as folder:
            other, part = Path(folder) / "other.json", Path(folder) / "part.json"
            other.write_text("[1]\n")
            part.write_text(json.dumps(data_of({"send_bw.64K.poll": result(rxe_rs=[1])})))
            for name, arguments, message in (
                    ("report.py", (), "the following arguments are required"), ("tables.py", (), "the following arguments are required"),
                    ("plots.py", (part,), "the following arguments are required: page"), ("report.py", ("--fast",), "error"),
                    ("report.py", ("/nonexistent",), "cannot read the result /nonexistent: "),
                    ("report.py", (part, BENCH / "bench"), f"cannot read the result {BENCH}/bench: "),
                    ("report.py", (part, other), f"{other} is no result of the benchmark"),
                    ("plots.py", (other, "page.html"), f"{other} is no result of the benchmark"),
                    ("tables.py", ("/nonexistent",), "cannot read the result /nonexistent: "),
                    ("tables.py", (other,), f"{other} is no result of the benchmark"),
                    ("tables.py", (part,), f"{part} is not of a run with all drivers")):
                done = self.run_program(name, *arguments)
                self.assertEqual((done.returncode, message in done.stderr.splitlines()[-1]), (2, True), (name, arguments, done.stderr))
        self.assertEqual([path.read_bytes() for path in (tables.STORED, *(path for path, _, _ in tables.TABLES))], before)

    def test_help(self):
        for name in ("report.py", "plots.py", "tables.py"):
            done = self.run_program(name, "--help")
            self.assertEqual((done.returncode, f"{name} BENCH.JSON" in done.stdout), (0, True), done)

    def test_reports(self):
        done = self.run_program("report.py", tables.STORED, tables.STORED)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("0 points are worse, 0 better beyond noise", done.stdout)

    def test_plot_without_a_name(self):
        if plots.missing():
            self.skipTest(plots.missing())
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "plot.svg"
            done = self.run_program("plots.py", tables.STORED, page, "WRITE: GB/s")
            self.assertEqual((done.returncode, page.exists()), (2, False))
            self.assertIn("no such plot: WRITE: GB/s; there are: SEND: MiB/s, ", done.stderr)
            self.assertEqual(self.run_program("plots.py", tables.STORED, page, "WRITE: MiB/s").returncode, 0)
            self.assertTrue(page.read_text().startswith("<svg "))


class Program(unittest.TestCase):
    def test_own_processor_time(self):
        bench = load_bench()
        before = bench.own_seconds()
        subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.3: pass"], check=True)
        self.assertGreater(bench.own_seconds() - before, 0.2)
        self.assertGreater(bench.host_seconds(), 0)

    def test_turn_knows_the_networks(self):
        """turn.sh has a case for each kind of network."""
        text = (BENCH / "turn.sh").read_text()
        for network in {run.network for run in points.all_runs()}:
            self.assertTrue(network in ("plain", "nouso") or re.sub(r"[\d.]+$", "*)", network) in text, network)

    def test_limit_is_measured_beside_the_driver(self):
        bench = load_bench()
        self.assertEqual(bench.turns(["rdma_rxe", "rxe_rs", "rxe_rs+icrc", "limit"]),
                         [("rdma_rxe", ["rdma_rxe"]), ("rxe_rs", ["rxe_rs", "limit"]), ("rxe_rs+icrc", ["rxe_rs+icrc"])])
        self.assertEqual(bench.turns(["tcp", "limit"]), [("tcp", ["tcp"]), ("limit", ["limit"])])

    def test_variants(self):
        """The driver in the name of a variant, and that turn.sh knows the variable that makes it measure the variant."""
        bench = load_bench()
        self.assertEqual(points.driver_of("rxe_rs+icrc"), "rxe_rs")
        self.assertEqual((bench.variable_of("tcp"), bench.variable_of("rxe_rs+speed")), ("", None))
        for name in bench.VARIANTS:
            variable = bench.variable_of(f"rxe_rs+{name}").removesuffix("=1\n")
            self.assertIn(f"${{{variable}:", (BENCH / "turn.sh").read_text())

    def test_wrong_options(self):
        """Each is refused with a line that names it, before a machine is booted."""
        for wrong, message in ((["--points", "send_bw.1M.poll", "speed.*"], "no such point: speed.*; "),
                               (["--quick", "--points", "send_bw.256K.poll"], "no such point: send_bw.256K.poll; "),
                               (["--rounds", "0"], "a number of rounds is at least 1: 0"),
                               (["--compare", "/nonexistent"], "cannot read the result /nonexistent: "),
                               (["--compare", str(BENCH / "bench")], f"cannot read the result {BENCH}/bench: "),
                               (["--drivers", "rxe_rs,fast"], "no such driver: fast")):
            done = subprocess.run([BENCH / "bench", *wrong], capture_output=True, text=True)
            self.assertEqual((done.returncode, message in done.stderr.splitlines()[-1]), (2, True), (wrong, done.stderr))

    def test_results_would_be_lost(self):
        done = subprocess.run([BENCH / "bench", "--out", "/home/me/results"], capture_output=True, text=True, env={**os.environ, "RXE_IN_ROOT": "1"})
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("/home/me/results is a folder of the toolchain root;", done.stderr)


if __name__ == "__main__":
    unittest.main()
