#!/usr/bin/env python3
"""Writes the dashboard from the panels below, in Grafana's classic schema. An installation has it as deploy/grafana/dashboards/nsa.json.

    deploy/grafana/make_dashboard.py            write it to standard output
    deploy/grafana/make_dashboard.py FILE       write it to this file

tests/deploy/dashboard_test.py says which of its panels a Prometheus leaves empty.
"""
import json
import pathlib
import sys

from panels import Panel, bars, gauge, render, series, stat, table, variable

JOB = 'job=~"$job",instance=~"$instance"'
ONE = JOB + ',job_id=~"$job_id"'
GREEN, YELLOW, RED = "green", "#EAB839", "red"
STATES = {"RUNNING": GREEN, "SUCCEEDED": "blue", "FAILED": RED, "STOPPED": "text", "RESTARTING": "orange", "STOPPING": "orange",
          "STARTING": YELLOW, "PREFLIGHT": YELLOW, "QUEUED": YELLOW}
BRANCHES = (("cmp", "compressed"), ("sel", "selected"), ("win", "window"))
LN3 = 1.0986


def one(metric, more=""):
    """Selects a metric of the jobs chosen in the dashboard."""
    return f"{metric}{{{ONE}{more}}}"


def rate(counter, more=""):
    return f"rate({one(counter, more)}[$__rate_interval])"


def quantile(share, histogram, by="job_id", selector=ONE):
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({histogram}_bucket{{{selector}}}[$__rate_interval])))".replace(", )", ")")


def total(counter, label):
    """The value of a counter; 0 where it has no series yet, because a series appears with its first count."""
    return f"sum by ({label}) ({one(counter)}) or 0 * sum by ({label}) ({one('nsa_job_step')})"


MFU = ("Model FLOP utilisation: the operations per second that the model needs, divided by the dense bf16 rate in the data sheet of the "
       "job's GPUs. Empty on the CPU.")
# Of a job without one, or that had to wait in the queue since, the time since its first step.
CHECKPOINT_AGE = (f"time() - ({one('nsa_job_last_checkpoint_timestamp_seconds')} > {one('nsa_job_first_step_timestamp_seconds')}"
                  f" or {one('nsa_job_first_step_timestamp_seconds')})")
KEYS_OFF = f"sum by (job_id) (abs({one('nsa_keys_read')} - {one('nsa_keys_expected')}))"

OVERVIEW = [
    table("Jobs", "The jobs chosen above, at the end of the time range.", [
        ("Job", f"sum by (job_id, name, device, world_size) ({one('nsa_job_info')} == 1)", None, {}),
        ("State", f"sum by (job_id, state) ({one('nsa_job_state')} == 1)", None, {}),
        ("Done", f"sum by (job_id) ({one('nsa_job_step')} / {one('nsa_job_target_steps')})", "percentunit", {"gauge": True}),
        ("Step", f"sum by (job_id) ({one('nsa_job_step')})", "locale", {}),
        ("Of", f"sum by (job_id) ({one('nsa_job_target_steps')})", "locale", {}),
        ("Loss", f"sum by (job_id) ({one('nsa_job_loss')})", "none", {"decimals": 3}),
        ("Validation", f"sum by (job_id) ({one('nsa_job_val_loss')})", "none", {"decimals": 3}),
        ("Tokens/s", f"sum by (job_id) ({one('nsa_job_tokens_per_second')})", "short", {}),
        ("Time left", f"sum by (job_id) ({one('nsa_job_eta_seconds')} >= 0)", "s", {}),
        ("Checkpoint age", f"sum by (job_id) ({CHECKPOINT_AGE})", "s", {}),
        ("Goodput", f"sum by (job_id) ({one('nsa_job_goodput_ratio')})", "percentunit", {"decimals": 1}),
        ("Restarts", f"sum by (job_id) ({one('nsa_job_restarts_total')})", "none", {"decimals": 0}),
    ], labels={"name": "Name", "job_id": "Id", "device": "Device", "world_size": "Ranks", "state": "State"}, hidden=("Job", "State"),
        colours={"State": STATES}, height=4),
    stat("State", "none", "State of the job.", (f"{one('nsa_job_state')} == 1", "{{state}}"), text="name", now=True,
         colours=STATES),
    stat("Health", "none", "What is wrong with the run, judged by the coordinator: nsactl describe says it in words. Empty while it is healthy.",
         (f"{one('nsa_job_health_problem')} == 1", "{{job_id}} {{problem}}"), text="name", now=True),
    gauge("Progress", "percentunit", "Steps done as a share of the requested steps.",
          (f"{one('nsa_job_step')} / {one('nsa_job_target_steps')}", "{{job_id}}"), maximum=1),
    stat("Time left", "s", "At the current speed.", (f"{one('nsa_job_eta_seconds')} >= 0", "{{job_id}}"), now=True),
    stat("Throughput", "short", "Predicted tokens per second over all ranks, mean of about 20 steps.",
         (one("nsa_job_tokens_per_second"), "{{job_id}}"), graph=True),
    stat("Step time", "s", "Mean time of a step.",
         (f"{rate('nsa_job_step_duration_seconds_sum')} / {rate('nsa_job_step_duration_seconds_count')}", "{{job_id}}"), graph=True),
    stat("MFU", "percentunit", MFU, (one("nsa_job_mfu_ratio"), "{{job_id}}"), graph=True, decimals=1),
    stat("Loss", "none", "Training loss of the last step, in nats per token.", (one("nsa_job_loss"), "{{job_id}}"), graph=True, decimals=3),
    stat("Validation loss", "none", "Loss of the last validation, in nats per token.", (one("nsa_job_val_loss"), "{{job_id}}"), graph=True,
         decimals=3),
    stat("Checkpoint age", "s", "Training time that a failure would lose now.", (CHECKPOINT_AGE, "{{job_id}}"), now=True),
    stat("Restarts", "none", "Times that the job lost its ranks, since the coordinator started.",
         (one("nsa_job_restarts_total"), "{{job_id}}"), now=True, steps=((0, GREEN), (1, YELLOW), (3, RED))),
    stat("Fallbacks", "none", "Times the intended fast path was not taken, since the coordinator started.",
         (total("nsa_fallbacks_total", "job_id"), "{{job_id}}"), now=True, steps=((0, GREEN), (1, RED))),
    stat("Keys off the formula", "none", "Difference between the keys read and the keys that the formula expects, over all layers and "
         "branches of the last step. Anything but 0 is a kernel defect.",
         (KEYS_OFF, "{{job_id}}"), now=True, steps=((0, GREEN), (1, RED))),
]

LEARNING = [
    series("Loss", "none", "Training loss of each step and the last validation loss, in nats per token. A validation loss that rises above the "
           "training loss means over-fitting. Both below ln V on random tokens mean that future tokens leak into the model.",
           (one("nsa_job_loss"), "{{job_id}} train"), (one("nsa_job_val_loss"), "{{job_id}} validation"), width=12),
    series("Loss by source and by validation set", "none", "With data.mix the loss of each source's sequences in the last step, with data.val the "
           "last loss on each set, in nats per token.",
           (one("nsa_job_source_loss"), "{{job_id}} {{source}}"), (one("nsa_job_val_set_loss"), "{{job_id}} {{set}}"), width=12),
    series("Sequences by source", "none", "Share of the sequences that each source of data.mix gave, over the last minutes; and its epoch.",
           (rate("nsa_job_source_rows_total"), "{{job_id}} {{source}}"), (one("nsa_job_source_epoch"), "{{job_id}} {{source}} epoch"), minimum=0,
           width=12),
    series("Gradient norm", "none", "Global L2 norm before clipping, the value that clipping uses.", (one("nsa_job_grad_norm"), "{{job_id}}"),
           log=True, width=6),
    series("Learning rate", "sci", "Learning rate of the last step.", (one("nsa_job_learning_rate"), "{{job_id}}"), width=6),
]

SPEED = [
    series("Throughput", "short", "Predicted tokens per second over all ranks.", (rate("nsa_job_tokens_total"), "{{job_id}}"), minimum=0),
    series("Step time, mean and 95th percentile", "s", "From the end of one step to the end of the next, without validation and without "
           "the time that training stops for a checkpoint. The percentile is accurate to about 25 %.",
           (f"{rate('nsa_job_step_duration_seconds_sum')} / {rate('nsa_job_step_duration_seconds_count')}", "{{job_id}} mean"),
           (quantile(0.95, "nsa_job_step_duration_seconds"), "{{job_id}} p95"), minimum=0),
    series("Where a second goes", "percentunit", "Share of wall time in each phase. Data above 5 % means that the loader is too slow.",
           (f"sum by (job_id, phase) ({rate('nsa_job_phase_seconds_total')})", "{{job_id}} {{phase}}"),
           (f"sum by (job_id) ({rate('nsa_job_checkpoint_stall_seconds_total')})", "{{job_id}} checkpoint"), stacked=True, maximum=1),
    series("MFU", "percentunit", MFU, (one("nsa_job_mfu_ratio"), "{{job_id}}"), minimum=0, width=6),
    series("Goodput", "percentunit", "Share of the time in which the job's ranks ran that was spent on steps and validations that were kept. The rest "
           "went into starting, checkpoints and work lost to failures.",
           (one("nsa_job_goodput_ratio"), "{{job_id}}"), minimum=0, maximum=1, width=6),
    series("Model arithmetic", "flops", "Floating-point operations per second that the model needs. Recomputation is not counted.",
           (rate("nsa_job_flops_total"), "{{job_id}}"), minimum=0, width=6),
    series("Stragglers", "none", "Busy time of a rank in its last step, divided by the mean over all ranks. 1 means that the ranks are balanced.",
           (one("nsa_worker_straggler_ratio"), "{{job_id}} rank {{rank}}"), width=6),
    series("Memory of the ranks", "bytes", "Memory in use and reserved on each rank's GPU; on the CPU, the resident set and its peak.",
           (one("nsa_worker_memory_bytes"), "{{job_id}} rank {{rank}} {{kind}}"), minimum=0),
    series("Memory of the GPUs", "bytes", "Memory of every GPU, including what other programs use: memory in use that no job holds belongs "
           "to one of them.",
           (f"nsa_gpu_memory_bytes{{{JOB}}}", "{{agent}} {{gpu}} {{kind}}"), minimum=0),
    series("GPU utilisation", "percentunit", "Share of the time in which a kernel ran, by GPU of every machine.",
           (f"nsa_gpu_utilization_ratio{{{JOB}}}", "{{agent}} {{gpu}}"), minimum=0, maximum=1),
    series("GPU power", "watt", "Power that each GPU takes.", (f"nsa_gpu_power_watts{{{JOB}}}", "{{agent}} {{gpu}}"), minimum=0),
    series("GPU temperature", "celsius", "Temperature of each GPU.", (f"nsa_gpu_temperature_celsius{{{JOB}}}", "{{agent}} {{gpu}}"), minimum=0),
    series("GPUs with errors", "none", "1 for a GPU that is taken out because of an uncorrectable error; its count of memory errors beside it.",
           (f"nsa_gpu_fault{{{JOB}}}", "{{agent}} {{gpu}}"), (f"nsa_gpu_uncorrected_errors{{{JOB}}}", "{{agent}} {{gpu}} memory errors"), minimum=0),
    series("Epoch of the data", "none", "How many times the training data has been read.", (one("nsa_job_data_epoch"), "{{job_id}}"),
           minimum=0),
]

ATTENTION = [
    series("Gate entropy by layer", "none", "Mean entropy of the gate in nats. ln 3 = 1.0986 means equal shares, below 0.1 the gate has collapsed. "
           "A gate that learns moves away from ln 3.", (one("nsa_gate_entropy"), "layer {{layer}}")),
    series("Largest gate by layer", "percentunit", "Mean over rows of the largest gate. One third means equal shares.",
           (one("nsa_gate_max_mean"), "layer {{layer}}")),
    bars("Gate entropy now", "none", "The same at the end of the time range, from 0 (one branch only) to ln 3 (equal shares).",
         (one("nsa_gate_entropy"), "layer {{layer}}"), maximum=LN3, steps=((0, RED), (0.1, YELLOW), (0.3, GREEN)), decimals=3),
    *[series(f"Share of the {word} branch by layer", "percentunit", f"Mean share that the gate gives to the {word} branch.",
             (one("nsa_gate_share_ratio", f',branch="{branch}"'), "layer {{layer}}")) for branch, word in BRANCHES],
    series("Collapsed gates by layer", "percentunit", "Share of rows with an entropy below 0.1 and one share above 0.95, "
           "or with gates that sum to less than 0.05.",
           (one("nsa_gate_collapse_ratio"), "layer {{layer}}"), maximum=1),
    series("Attention mass the selected blocks keep, by layer", "percentunit", "Share of the exact attention's softmax mass on the blocks that were "
           "selected, mean over the sampled queries and heads of the last audit (nsa.audit_every). 1 means that nothing was left out; a larger "
           "nsa.n_sel raises it.", (one("nsa_job_attention_mass_kept", ',branch="sel"'), "layer {{layer}}"), minimum=0, maximum=1),
    series("Attention mass in the window, by layer", "percentunit", "Share of the exact attention's softmax mass, with the window branch's keys, "
           "on the last nsa.w tokens. What is missing is further back.",
           (one("nsa_job_attention_mass_kept", ',branch="win"'), "layer {{layer}}"), minimum=0, maximum=1),
    series("Selected tokens that the window reads, too, by layer", "percentunit", "Share of the selected tokens that lie in the window, mean over "
           "the queries of the last audit. Near 1 the selection finds nothing that the window does not.",
           (one("nsa_selection_window_overlap_ratio"), "layer {{layer}}"), minimum=0, maximum=1),
    series("Entropy of the choice over blocks, by layer", "percentunit", "Entropy of the freely chosen blocks as a share of the largest: 0 when all "
           "queries choose the same block. Forced blocks do not count.", (one("nsa_selection_entropy_ratio"), "layer {{layer}}"), minimum=0, maximum=1),
    series("Blocks that the token before has chosen, too, by layer", "percentunit", "Share of a query's freely chosen blocks that the token before it "
           "chose as well.", (one("nsa_selection_agreement_ratio"), "layer {{layer}}"), minimum=0, maximum=1),
    series("Keys read, counted and expected", "short", "Keys that the kernels counted in the forward pass of the last step, and the number "
           "from the formula. Both follow from the shape alone; the lines must coincide.", (f"sum by (job_id, branch) ({one('nsa_keys_read')})", "{{job_id}} {{branch}}"),
           (f"sum by (job_id, branch) ({one('nsa_keys_expected')})", "{{branch}} expected"), minimum=0),
    series("Keys read minus keys expected", "short", "Anything but 0 is a defect: a kernel does not read the keys that the formula expects.",
           (f"sum by (job_id, branch) ({one('nsa_keys_read')} - {one('nsa_keys_expected')})", "{{job_id}} {{branch}}")),
    series("Fallbacks", "short", "Times the intended fast path was not taken within an interval, by kind.",
           (f"sum by (job_id, kind) (increase({one('nsa_fallbacks_total')}[$__rate_interval])) or 0 * sum by (job_id) ({one('nsa_job_step')})",
            "{{job_id}} {{kind}}"), minimum=0),
]

RELIABILITY = [
    series("Age of the newest checkpoint", "s", "Training time that a failure would lose now, and the expected time between checkpoints.",
           (CHECKPOINT_AGE, "{{job_id}}"), (f"{one('nsa_job_checkpoint_interval_seconds')} > 0", "{{job_id}} interval"), minimum=0),
    series("Checkpoint writes, mean", "s", "Time from the snapshot to the final rename, in the background (write), and how long training stopped "
           "for it (stall).",
           (f"{rate('nsa_job_checkpoint_duration_seconds_sum')} / ({rate('nsa_job_checkpoint_duration_seconds_count')} > 0)",
            "{{job_id}} write"),
           (f"{rate('nsa_job_checkpoint_stall_seconds_total')} / ({rate('nsa_job_checkpoints_total')} > 0)", "{{job_id}} stall"), minimum=0),
    series("Time since the last step", "s", "Grows when a job is stuck.",
           (f"time() - {one('nsa_job_last_progress_timestamp_seconds')}", "{{job_id}}"), minimum=0),
    series("Ranks up", "none", "Worker processes that are running.", (f"sum by (job_id) ({one('nsa_worker_up')})", "{{job_id}}"), minimum=0),
    series("Restarts", "none", "Times that the job lost its ranks within an interval; nsactl events names the causes.",
           (f"increase({one('nsa_job_restarts_total')}[$__rate_interval])", "{{job_id}}"), minimum=0),
    series("Steps skipped, checkpoints failed", "none", "Within an interval: updates skipped because the loss or the gradient was not finite, and "
           "checkpoints that could not be written.",
           (f"increase({one('nsa_job_nonfinite_steps_total')}[$__rate_interval])", "{{job_id}} not finite"),
           (f"increase({one('nsa_job_checkpoint_failures_total')}[$__rate_interval])", "{{job_id}} checkpoints"), minimum=0),
]

COORDINATOR = [
    series("Jobs by state", "none", "Jobs in the store by state, and queued jobs by the kind of slot that they wait for.",
           (f"nsa_jobs{{{JOB}}}", "{{state}}"), (f"nsa_queued_jobs{{{JOB}}}", "QUEUED for {{kind}}"), minimum=0),
    series("Slots", "none", "Places for ranks on all machines.", (f"nsa_slots{{{JOB}}}", "{{kind}} {{state}}"), minimum=0),
    series("Agents", "none", "1 while an agent's heartbeats arrive; and 1 while its machine is cordoned or drained.", (f"nsa_agent_up{{{JOB}}}", "{{agent}}"),
           (f"nsa_agent_cordoned{{{JOB}}}", "{{agent}} cordoned"), minimum=0, maximum=1),
    series("Clocks of the machines", "s", "A machine's clock minus the coordinator's. Ranks of one job are placed only on machines whose clocks differ by "
           "at most a second.", (f"nsa_node_clock_offset_seconds{{{JOB}}}", "{{agent}}")),
    series("Requests", "reqps", "Requests per second, by method and status code.",
           (f"sum by (method, code) (rate(nsa_rpc_requests_total{{{JOB}}}[$__rate_interval]))", "{{method}} {{code}}"), minimum=0),
    series("Request time, 99th percentile", "s", "Time of unary requests, by method.",
           (quantile(0.99, "nsa_rpc_duration_seconds", "method", JOB), "{{method}}"), minimum=0),
    series("Store commits, mean and 99th percentile", "s", "Each commit waits for an fsync.",
           (f"rate(nsa_store_commit_duration_seconds_sum{{{JOB}}}[$__rate_interval]) / "
            f"(rate(nsa_store_commit_duration_seconds_count{{{JOB}}}[$__rate_interval]) > 0)", "mean"),
           (quantile(0.99, "nsa_store_commit_duration_seconds", "", JOB), "p99"), minimum=0),
    series("Queue wait", "s", "Time from entering the queue to the start: mean of the jobs that started within an interval, and the longest so far of those that wait.",
           (f"rate(nsa_queue_wait_seconds_sum{{{JOB}}}[$__rate_interval]) / (rate(nsa_queue_wait_seconds_count{{{JOB}}}[$__rate_interval]) > 0) "
            f"or 0 * nsa_queue_wait_seconds_count{{{JOB}}}", "mean"),
           (f"nsa_queue_oldest_wait_seconds{{{JOB}}}", "oldest for {{kind}}"), minimum=0),
    series("Preemptions", "none", "Jobs that gave way to one of higher priority within an interval (scheduling.preempt).",
           (f"increase(nsa_preemptions_total{{{JOB}}}[$__rate_interval])", "jobs"), minimum=0),
    series("Store errors", "none", "Operations of the store that failed within an interval.",
           (f"increase(nsa_store_errors_total{{{JOB}}}[$__rate_interval])", "{{op}}"), minimum=0),
    series("Connections of the gRPC port", "none", "Open now, of clients that have shown a valid token and of strangers; and those that were ended or refused "
           "within an interval because they overstepped a limit.",
           (f"nsa_tcp_connections{{{JOB}}}", "{{kind}}"), (f"increase(nsa_tcp_connections_ended_total{{{JOB}}}[$__rate_interval])", "ended: {{reason}}"), minimum=0),
    series("Open streams", "none", "Streams of clients that watch a job or follow a log.", (f"nsa_rpc_streams_active{{{JOB}}}", "{{method}}"),
           minimum=0),
    series("Oldest event that waits for delivery", "s", "How long notices are behind; empty without notices.",
           (f"nsa_notice_oldest_waiting_seconds{{{JOB}}}", "{{notice}}"), minimum=0),
    series("Events delivered and not delivered", "none", "Events that notices delivered, that receivers refused or that were given up, and failed attempts, "
           "within an interval; empty without notices.",
           (f"increase(nsa_notice_events_total{{{JOB}}}[$__rate_interval])", "{{notice}} {{result}}"),
           (f"increase(nsa_notice_failed_attempts_total{{{JOB}}}[$__rate_interval])", "{{notice}} failed attempts"), minimum=0),
]

ROWS: list[tuple[str, list[Panel]]] = [
    ("Job", OVERVIEW), ("Learning", LEARNING), ("Speed and memory", SPEED), ("Sparse attention", ATTENTION), ("Reliability", RELIABILITY),
    ("Coordinator", COORDINATOR)]


def dashboard():
    placed, identity, y = [], 1, 0
    for title, panels in ROWS:
        placed.append({"id": identity, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        identity, y, x, height = identity + 1, y + 1, 0, 0
        for panel in panels:
            if x + panel.width > 24:
                x, y, height = 0, y + height, 0
            placed.append(render(panel, identity, x, y))
            identity, x, height = identity + 1, x + panel.width, max(height, panel.height)
        y += height
    return {
        "id": None, "uid": "nsa-training", "title": "NSA training", "tags": ["nsa"], "schemaVersion": 39, "version": 2,
        "editable": False, "graphTooltip": 1, "refresh": "5s", "time": {"from": "now-1h", "to": "now"}, "timezone": "utc",
        "description": "Jobs of the NSA training service: learning, speed, sparse attention, reliability, coordinator.",
        "annotations": {"list": []}, "links": [], "panels": placed,
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
             "current": {"selected": False, "text": "Prometheus", "value": "prometheus"}},
            variable("job", "Scrape job", "label_values(nsa_build_info, job)"),
            variable("instance", "Coordinator", 'label_values(nsa_build_info{job=~"$job"}, instance)'),
            variable("job_id", "Training job", 'label_values(nsa_job_info{job=~"$job",instance=~"$instance"}, job_id)'),
        ]},
    }


def main():
    text = json.dumps(dashboard(), indent=1) + "\n"
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    if len(sys.argv) == 2:
        pathlib.Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
