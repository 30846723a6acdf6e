// Every number that training reports, described once: its name, how it is read from a record, which
// of several values stands for all of them, and its name in each place that shows it. training.csv,
// val.csv, k_stats.csv, attention_audit.csv, the heartbeat, TensorBoard, the curves that the
// coordinator keeps, the page's JSON, the metrics of a job, and the tables and charts of nsactl are
// loops over this table.
//
// To add a quantity, add its field in telemetry.proto, a row here, and the place that measures it.
// Names are contracts: people's scripts, dashboards and files on disk have them. Outside the table
// is what has a name of its own in each job: sources, validation sets, fallbacks.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/nsa/branch.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/job_status.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::record {

using Step = const v1::StepRecord&;
using Layer = const v1::LayerStats&;
using Gpu = const v1::GpuInfo&;
using Eval = const v1::EvalRecord&;
using Progress = const v1::JobProgress&;
using Value = std::optional<double>;  // nothing: not measured

enum class Of : uint8_t { kStep, kLayer, kGpu, kValidation };

// What stands for the values of several steps (in a curve) or layers (in TensorBoard).
enum class Keep : uint8_t { kMean, kLeast, kGreatest };

// The part of LayerStats that it comes from; a layer without that part has no value.
enum class Part : uint8_t { kWhole, kGate, kSelection, kAudit };

// How it is written as text. kBytes is shown in MiB (2^20) and GiB (2^30).
struct Form {
  enum Kind : uint8_t { kSignificant, kDecimals, kCount, kFlag, kBytes, kWord } kind;
  int digits = 0;  // of kSignificant and kDecimals
};

// How people see it, in the terminal and on the page.
struct View {
  enum Kind : uint8_t {
    kNumber,   // 2.3125, with `digits` decimals
    kRate,     // 2.94e-03, with `digits` decimals
    kCount,    // 950, 12.4k, 3.10M
    kPercent,  // a share, 0.975, as 97.5 %, with `digits` decimals
    kSeconds,  // 20 ms, 5 s, 10 min
    kBytes,    // 1.20 GiB
    kWord,     // as it is
  } kind = kNumber;
  int digits = 4;
  // Its name in a sentence and over its chart, which begins it with a capital where one is due:
  // "gradient norm". Every quantity that has a curve has one.
  const char* label = nullptr;
  const char* note = "";  // beside the title of its chart: "before clipping"
  const char* brief =
      nullptr;        // over its column in a table and in a line of figures; null: in none
  bool wide = false;  // only in wide tables
  int chart = 0;  // its place among the charts that are shown unasked, from 1; 0: not among them
  // Curves of other runs are drawn over it: of jobs that are compared, of what a fork continues.
  bool compared = false;
  // The axis of its chart begins at 0; single values may be so far above the others that an axis
  // that shows them hides the rest, so it shows the usual range or is logarithmic.
  bool from_zero = false;
  bool spikes = false;
  // Of a layer: shown as a map of layers over steps; the end of its colour scale, whose other end
  // is 0, or 0 when the values decide; and which values are a reason to look.
  bool map = false;
  double most = 0;
  enum Alarm : uint8_t { kNever, kLow, kHigh } alarm = kNever;
};

// A Prometheus family, and the label that tells the quantities of one family apart. `help` is in
// the first row of a family: a counter if its name ends in _total, else a gauge. A family without
// help is in server/watch/metrics_table.h.
struct Series {
  const char* family = nullptr;
  const char* help = nullptr;
  const char* label = nullptr;
  const char* value = nullptr;
};

// A function, or none. Unlike a pointer to a function it can be compared with null in a constant
// expression under -fsanitize=undefined, too.
template <typename Result, typename Argument>
class Reader {
 public:
  constexpr Reader(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  template <typename Function>
  requires std::is_invocable_r_v<Result, Function, Argument>
  constexpr Reader(Function function)  // NOLINT(google-explicit-constructor)
      : function_(function), is_there_(true) {}

  Result operator()(Argument argument) const { return function_(argument); }
  constexpr bool operator==(std::nullptr_t) const { return !is_there_; }

 private:
  Result (*function_)(Argument) = nullptr;
  bool is_there_ = false;
};

struct Quantity {
  const char* name;          // in curves and in the page's JSON
  const char* unit = "";     // as docs/results.md has it
  const char* meaning = "";  // likewise
  Form form = {Form::kSignificant, 6};
  Keep keep = Keep::kMean;
  Part part = Part::kWhole;
  int branch = -1;  // one of an array with a value for each branch
  // It has a curve, on disk under its name: under another name it is another curve.
  bool curve = false;
  // A step in which it is not finite does not change the parameters; charts mark such steps.
  bool must_be_finite = false;

  View view = {};

  // Its names, or null where it is not shown. A csv column is in the file of its kind and part:
  // training.csv, val.csv, k_stats.csv, attention_audit.csv.
  const char* csv = nullptr;
  const char* heartbeat = nullptr;
  bool beat = false;  // also in the heartbeats of steps that are not logged
  const char* tensorboard = nullptr;
  Series series = {};

  // How it is read: exactly one of these.
  Reader<double, Step> step = nullptr;
  Reader<std::string, Step> word = nullptr;
  Reader<Value, Layer> layer = nullptr;
  Reader<Value, Gpu> gpu = nullptr;
  Reader<double, Eval> validation = nullptr;
  // Its newest value, of those that JobProgress has and that are shown without more words: how it
  // is read there, and how the coordinator sets it. Both or none.
  Reader<double, Progress> newest = nullptr;
  void (*set_newest)(v1::JobProgress*, double) = nullptr;
  // Its place in the order in which a step computes what has the same bits when the step is done
  // again, from 1; 0: it has not, or nobody compares it.
  int computed = 0;
  // Of a layer: false when the value is the 0 of nothing. Files have it, curves and metrics do not.
  bool (*counts)(Layer) = nullptr;

  constexpr Of of() const {
    if (layer != nullptr) return Of::kLayer;
    if (gpu != nullptr) return Of::kGpu;
    return validation != nullptr ? Of::kValidation : Of::kStep;
  }
};

// A DataSource as a job file spells it, e.g. "jsonl"; "mix" for the batches of data.mix, which have
// no source of their own.
std::string SourceName(v1::DataSource source);

bool Has(Layer layer, Part part);

// The value in a layer, nothing where the layer does not have it.
Value ValueOf(const Quantity& quantity, Layer layer);

// The same without zeros that say nothing (Quantity::counts).
Value MeasuredValueOf(const Quantity& quantity, Layer layer);

// Several values as one, by Quantity::keep; nothing for none. A value that is not finite is kept.
class Kept {
 public:
  explicit Kept(Keep keep) : keep_(keep) {}
  void Add(double value);
  Value Result() const;

 private:
  Keep keep_;
  double sum_ = 0, least_ = NAN, greatest_ = NAN;
  int64_t count_ = 0;
};

namespace internal {

template <typename Values>
Value At(const Values& values, int branch) {
  if (branch >= values.size()) return std::nullopt;
  return static_cast<double>(values.Get(branch));
}

template <Branch kBranch>
Value Share(Layer l) {
  return At(l.gate().branch_share(), kBranch);
}
template <Branch kBranch>
Value Gate(Layer l) {
  return At(l.gate().gate_mean(), kBranch);
}
template <Branch kBranch>
Value KeysRead(Layer l) {
  return At(l.keys_read(), kBranch);
}
template <Branch kBranch>
Value KeysExpected(Layer l) {
  return At(l.keys_expected(), kBranch);
}

inline Value If(bool measured, double value) { return measured ? Value(value) : std::nullopt; }
inline bool Selects(Layer l) { return l.selection().rows() > 0; }
inline bool Chooses(Layer l) { return l.audit().choice().free_choices() > 0; }

}  // namespace internal

// clang-format off
// The order is that of the columns of a CSV file and of the keys of a heartbeat.
inline constexpr Quantity kQuantities[] = {
    {.name = "loss", .unit = "nats a token", .meaning = "mean over the tokens of all ranks in this step, before the update",
     .form = {Form::kSignificant, 9}, .curve = true, .must_be_finite = true,
     .view = {.label = "training loss", .note = "nats a token", .brief = "loss", .chart = 1, .compared = true},
     .csv = "loss", .heartbeat = "loss", .beat = true, .tensorboard = "train/loss",
     .series = {"nsa_job_loss", "Training loss of the last step, nats per token."}, .step = [](Step s) { return s.loss(); }, .computed = 3},
    {.name = "learning_rate", .meaning = "learning rate of this step",
     .form = {Form::kSignificant, 9}, .curve = true,
     .view = {.kind = View::kRate, .digits = 2, .label = "learning rate", .brief = "lr", .chart = 6, .compared = true, .from_zero = true},
     .csv = "lr", .heartbeat = "lr", .tensorboard = "train/lr",
     .series = {"nsa_job_learning_rate", "Learning rate of the last step."}, .step = [](Step s) { return s.learning_rate(); },
     .newest = [](Progress p) { return p.learning_rate(); }, .set_newest = [](v1::JobProgress* p, double rate) { p->set_learning_rate(rate); },
     .computed = 2},
    {.name = "tokens_per_second", .unit = "tokens a second", .meaning = "over all ranks, this step",
     .form = {Form::kDecimals, 1}, .curve = true,
     .view = {.kind = View::kCount, .label = "throughput", .note = "tokens a second", .brief = "tok/s", .chart = 2, .compared = true, .from_zero = true},
     .csv = "toks_per_s", .heartbeat = "toks_per_s", .beat = true, .tensorboard = "train/toks_per_s",
     .step = [](Step s) { return s.tokens_per_second(); }},
    {.name = "grad_norm", .meaning = "global L2 norm before clipping",
     .form = {Form::kSignificant, 9}, .curve = true, .must_be_finite = true,
     .view = {.digits = 3, .label = "gradient norm", .note = "before clipping", .brief = "grad norm", .chart = 3, .compared = true, .from_zero = true, .spikes = true},
     .csv = "grad_norm", .heartbeat = "grad_norm", .tensorboard = "train/grad_norm",
     .series = {"nsa_job_grad_norm", "Global gradient norm before clipping."}, .step = [](Step s) { return s.grad_norm(); },
     .newest = [](Progress p) { return p.grad_norm(); }, .set_newest = [](v1::JobProgress* p, double norm) { p->set_grad_norm(norm); },
     .computed = 4},
    {.name = "tokens", .unit = "tokens", .meaning = "predicted in this step, all ranks",
     .form = {Form::kCount},
     .series = {"nsa_job_tokens_total", "Predicted tokens over all ranks, repeated steps included."},
     .step = [](Step s) { return static_cast<double>(s.tokens()); }, .computed = 1},
    {.name = "total_tokens", .unit = "tokens", .meaning = "predicted since step 0, all ranks",
     .form = {Form::kCount},
     .view = {.kind = View::kCount, .label = "tokens", .brief = "tokens", .wide = true},
     .csv = "total_tokens", .heartbeat = "total_tokens", .step = [](Step s) { return static_cast<double>(s.total_tokens()); }},
    {.name = "learned_tokens", .unit = "tokens", .meaning = "whose mean the loss of this step is, all ranks; with `data.loss_on: assistant` those of answers",
     .form = {Form::kCount}, .curve = true,
     .view = {.kind = View::kCount, .label = "learned tokens of a step", .brief = "learned", .wide = true, .from_zero = true},
     .csv = "learned_tokens",
     .step = [](Step s) { return static_cast<double>(s.answer_tokens() > 0 ? s.answer_tokens() : s.tokens()); }},
    {.name = "data_seconds", .unit = "s", .meaning = "waiting for the batch",
     .form = {Form::kDecimals, 6}, .curve = true,
     .view = {.kind = View::kSeconds, .label = "waiting for data", .note = "each step", .brief = "data", .chart = 9, .from_zero = true, .spikes = true},
     .csv = "data_seconds", .heartbeat = "dt_fetch_s",
     .series = {"nsa_job_phase_seconds_total", nullptr, "phase", "data"}, .step = [](Step s) { return s.times().data_seconds(); }},
    {.name = "forward_seconds", .unit = "s", .meaning = "forward on this rank, all micro-batches",
     .form = {Form::kDecimals, 6}, .curve = true,
     .view = {.kind = View::kSeconds, .label = "forward", .note = "each step", .brief = "fwd", .wide = true, .from_zero = true, .spikes = true},
     .csv = "forward_seconds",
     .series = {"nsa_job_phase_seconds_total", nullptr, "phase", "forward"}, .step = [](Step s) { return s.times().forward_seconds(); }},
    {.name = "backward_seconds", .unit = "s", .meaning = "backward on this rank, all micro-batches",
     .form = {Form::kDecimals, 6}, .curve = true,
     .view = {.kind = View::kSeconds, .label = "backward", .note = "each step", .brief = "bwd", .wide = true, .from_zero = true, .spikes = true},
     .csv = "backward_seconds",
     .series = {"nsa_job_phase_seconds_total", nullptr, "phase", "backward"}, .step = [](Step s) { return s.times().backward_seconds(); }},
    {.name = "communication_seconds", .unit = "s", .meaning = "waiting for other ranks",
     .form = {Form::kDecimals, 6}, .curve = true,
     .view = {.kind = View::kSeconds, .label = "waiting for other ranks", .note = "each step", .brief = "comm", .from_zero = true, .spikes = true},
     .csv = "communication_seconds",
     .series = {"nsa_job_phase_seconds_total", nullptr, "phase", "communication"}, .step = [](Step s) { return s.times().communication_seconds(); }},
    {.name = "optimizer_seconds", .unit = "s", .meaning = "clipping and the optimizer",
     .form = {Form::kDecimals, 6}, .curve = true,
     .view = {.kind = View::kSeconds, .label = "clipping and the optimizer", .note = "each step", .brief = "opt", .wide = true, .from_zero = true, .spikes = true},
     .csv = "optimizer_seconds",
     .series = {"nsa_job_phase_seconds_total", nullptr, "phase", "optimizer"}, .step = [](Step s) { return s.times().optimizer_seconds(); }},
    {.name = "step_seconds", .unit = "s", .meaning = "the whole step, without validation, checkpoints and audits of the attention (`nsa.audit_every`)",
     .form = {Form::kDecimals, 6}, .curve = true,
     .view = {.kind = View::kSeconds, .label = "time of a step", .note = "rank 0", .brief = "step", .chart = 8, .from_zero = true, .spikes = true},
     .csv = "step_seconds", .heartbeat = "step_seconds", .tensorboard = "train/step_seconds",
     .series = {"nsa_job_step_duration_seconds"}, .step = [](Step s) { return s.times().step_seconds(); }},
    {.name = "data_source", .meaning = "`text`, `jsonl`, `tokens`, `parquet`, `synthetic`, `uniform`; `mix` with `data.mix`",
     .form = {Form::kWord},
     .view = {.kind = View::kWord, .label = "data source", .brief = "source", .wide = true},
     .csv = "data_source", .heartbeat = "data_source", .word = [](Step s) { return SourceName(s.data_source()); }},
    {.name = "data_epoch", .meaning = "epoch of the data, from 0",
     .form = {Form::kCount},
     .view = {.kind = View::kCount, .label = "epoch", .brief = "epoch", .wide = true},
     .heartbeat = "data_epoch",
     .series = {"nsa_job_data_epoch", "Epoch of the data, 0-based."}, .step = [](Step s) { return static_cast<double>(s.data_epoch()); }},
    {.name = "skipped_nonfinite", .unit = "0 or 1", .meaning = "1 when loss or gradient was not finite and the update was skipped",
     .form = {Form::kFlag}, .curve = true,
     .view = {.kind = View::kCount, .label = "skipped updates", .note = "loss or gradient not finite", .from_zero = true},
     .csv = "skipped_nonfinite", .heartbeat = "skipped_nonfinite",
     .series = {"nsa_job_nonfinite_steps_total", "Steps whose update was skipped because loss or gradient were not finite."},
     .step = [](Step s) { return s.skipped_nonfinite() ? 1.0 : 0.0; }},
    {.name = "memory_bytes", .unit = "bytes", .meaning = "device memory in use; on the CPU the resident set",
     .form = {Form::kBytes}, .curve = true,
     .view = {.kind = View::kBytes, .label = "memory", .note = "in use", .brief = "memory", .chart = 5, .from_zero = true},
     .heartbeat = "mem_allocated", .beat = true, .tensorboard = "memory/allocated_gib",
     .series = {"nsa_worker_memory_bytes", nullptr, "kind", "allocated"}, .step = [](Step s) { return static_cast<double>(s.memory_allocated_bytes()); }},
    {.name = "memory_reserved_bytes", .unit = "bytes", .meaning = "device memory reserved; on the CPU the peak of the resident set",
     .form = {Form::kBytes}, .curve = true,
     .view = {.kind = View::kBytes, .label = "memory reserved", .note = "on the CPU the peak", .from_zero = true},
     .heartbeat = "mem_reserved", .beat = true,
     .series = {"nsa_worker_memory_bytes", nullptr, "kind", "reserved"}, .step = [](Step s) { return static_cast<double>(s.memory_reserved_bytes()); }},

    {.name = "gate_entropy", .unit = "nats", .meaning = "mean entropy of a row of gates",
     .part = Part::kGate, .curve = true,
     .view = {.label = "gate entropy", .note = "nats; ln 3 = 1.099 when all share equally", .brief = "entropy", .chart = 4, .map = true, .most = 1.0986, .alarm = View::kLow},
     .heartbeat = "gate_entropy_mean", .tensorboard = "gate/entropy_mean",
     .series = {"nsa_gate_entropy", "Mean entropy of the gates, nats; ln 3 when the branches share equally."},
     .layer = [](Layer l) -> Value { return l.gate().entropy_mean(); }},
    {.name = "gate_entropy_min", .unit = "nats", .meaning = "smallest entropy of a row",
     .keep = Keep::kLeast, .part = Part::kGate, .curve = true,
     .view = {.digits = 3, .label = "least gate entropy", .note = "nats", .brief = "min", .most = 1.0986},
     .heartbeat = "gate_entropy_min",
     .series = {"nsa_gate_entropy_min", "Smallest entropy of a gate, nats."}, .layer = [](Layer l) -> Value { return l.gate().entropy_min(); }},
    {.name = "gate_max", .unit = "0 to 1", .meaning = "mean of the largest share of each row",
     .part = Part::kGate, .curve = true,
     .view = {.label = "largest gate", .note = "mean of the rows", .brief = "max gate", .most = 1},
     .heartbeat = "gate_max_mean",
     .series = {"nsa_gate_max_mean", "Mean of the largest gate of each row."}, .layer = [](Layer l) -> Value { return l.gate().max_gate_mean(); }},
    {.name = "gate_largest", .unit = "0 to 1", .meaning = "largest share of any row",
     .keep = Keep::kGreatest, .part = Part::kGate, .heartbeat = "gate_max",
     .series = {"nsa_gate_max", "Largest gate of all."}, .layer = [](Layer l) -> Value { return l.gate().max_gate_max(); }},
    {.name = "gate_collapse", .unit = "0 to 1", .meaning = "share of rows that have collapsed to one branch",
     .keep = Keep::kGreatest, .part = Part::kGate, .curve = true,
     .view = {.kind = View::kPercent, .digits = 2, .label = "collapsed gates", .note = "share of rows", .brief = "collapsed", .from_zero = true, .map = true, .most = 1, .alarm = View::kHigh},
     .heartbeat = "gate_collapse_frac", .tensorboard = "gate/collapse_max",
     .series = {"nsa_gate_collapse_ratio", "Share of gates that have collapsed to one branch."},
     .layer = [](Layer l) -> Value { return l.gate().collapse_ratio(); }},
    {.name = "share_cmp", .unit = "0 to 1", .meaning = "mean share of the compressed branch",
     .part = Part::kGate, .branch = kCmp, .curve = true,
     .view = {.digits = 3, .label = "share of compressed", .note = "gate over the sum of the gates", .brief = "cmp", .map = true, .most = 1},
     .heartbeat = "gate_branch_shares", .tensorboard = "gate/share_cmp",
     .series = {"nsa_gate_share_ratio", "Mean share of a branch.", "branch", "cmp"}, .layer = internal::Share<kCmp>},
    {.name = "share_sel", .unit = "0 to 1", .meaning = "mean share of the selected branch",
     .part = Part::kGate, .branch = kSel, .curve = true,
     .view = {.digits = 3, .label = "share of selected", .note = "gate over the sum of the gates", .brief = "sel", .map = true, .most = 1},
     .heartbeat = "gate_branch_shares", .tensorboard = "gate/share_sel",
     .series = {"nsa_gate_share_ratio", nullptr, "branch", "sel"}, .layer = internal::Share<kSel>},
    {.name = "share_win", .unit = "0 to 1", .meaning = "mean share of the window",
     .part = Part::kGate, .branch = kWin, .curve = true,
     .view = {.digits = 3, .label = "share of window", .note = "gate over the sum of the gates", .brief = "win", .map = true, .most = 1},
     .heartbeat = "gate_branch_shares", .tensorboard = "gate/share_win",
     .series = {"nsa_gate_share_ratio", nullptr, "branch", "win"}, .layer = internal::Share<kWin>},
    {.name = "gate_cmp", .unit = "0 to 1", .meaning = "mean gate of the compressed branch",
     .part = Part::kGate, .branch = kCmp, .curve = true,
     .view = {.digits = 3, .label = "gate of compressed", .note = "mean of the rows", .most = 1},
     .heartbeat = "gate_means", .layer = internal::Gate<kCmp>},
    {.name = "gate_sel", .unit = "0 to 1", .meaning = "mean gate of the selected branch",
     .part = Part::kGate, .branch = kSel, .curve = true,
     .view = {.digits = 3, .label = "gate of selected", .note = "mean of the rows", .most = 1},
     .heartbeat = "gate_means", .layer = internal::Gate<kSel>},
    {.name = "gate_win", .unit = "0 to 1", .meaning = "mean gate of the window",
     .part = Part::kGate, .branch = kWin, .curve = true,
     .view = {.digits = 3, .label = "gate of window", .note = "mean of the rows", .most = 1},
     .heartbeat = "gate_means", .layer = internal::Gate<kWin>},
    {.name = "keys_mean", .unit = "keys", .meaning = "mean number of selected keys of a query and group",
     .part = Part::kSelection, .curve = true,
     .view = {.digits = 1, .label = "selected keys", .note = "mean of a query", .brief = "keys mean", .map = true},
     .csv = "k_mean", .heartbeat = "sel_k_mean", .tensorboard = "selection/keys_mean",
     .layer = [](Layer l) -> Value { return l.selection().keys_mean(); }, .counts = internal::Selects},
    {.name = "keys_max", .unit = "keys", .meaning = "largest number of selected keys", .form = {Form::kCount},
     .keep = Keep::kGreatest, .part = Part::kSelection,
     .view = {.kind = View::kCount, .label = "most selected keys", .brief = "keys max"},
     .csv = "k_max", .heartbeat = "sel_k_max",
     .layer = [](Layer l) -> Value { return l.selection().keys_max(); }, .counts = internal::Selects},
    {.name = "selection_rows", .unit = "rows", .meaning = "queries × groups", .form = {Form::kCount},
     .part = Part::kSelection, .csv = "rows", .heartbeat = "sel_rows", .layer = [](Layer l) -> Value { return l.selection().rows(); }},
    {.name = "keys_at_max", .unit = "0 to 1", .meaning = "share of rows with the largest number of keys",
     .part = Part::kSelection, .curve = true,
     .view = {.kind = View::kPercent, .digits = 0, .label = "rows with the most keys", .note = "share of rows", .brief = "at max", .most = 1},
     .csv = "pct_at_max", .heartbeat = "sel_pct_at_max",
     .layer = [](Layer l) -> Value { return l.selection().at_max_ratio(); }, .counts = internal::Selects},
    {.name = "keys_read_cmp", .unit = "keys", .meaning = "read by the compressed branch, counted by the kernels", .form = {Form::kCount},
     .branch = kCmp, .heartbeat = "keys_read",
     .series = {"nsa_keys_read", "Keys read in the last step of rank 0, counted by the kernels.", "branch", "cmp"},
     .layer = internal::KeysRead<kCmp>},
    {.name = "keys_read_sel", .unit = "keys", .meaning = "read by the selected branch, counted by the kernels", .form = {Form::kCount},
     .branch = kSel, .heartbeat = "keys_read", .series = {"nsa_keys_read", nullptr, "branch", "sel"}, .layer = internal::KeysRead<kSel>},
    {.name = "keys_read_win", .unit = "keys", .meaning = "read by the window, counted by the kernels", .form = {Form::kCount},
     .branch = kWin, .heartbeat = "keys_read", .series = {"nsa_keys_read", nullptr, "branch", "win"}, .layer = internal::KeysRead<kWin>},
    {.name = "keys_expected_cmp", .unit = "keys", .meaning = "of the compressed branch, from the formula", .form = {Form::kCount},
     .branch = kCmp, .heartbeat = "keys_expected",
     .series = {"nsa_keys_expected", "Keys read according to the formula.", "branch", "cmp"},
     .layer = internal::KeysExpected<kCmp>},
    {.name = "keys_expected_sel", .unit = "keys", .meaning = "of the selected branch, from the formula", .form = {Form::kCount},
     .branch = kSel, .heartbeat = "keys_expected", .series = {"nsa_keys_expected", nullptr, "branch", "sel"}, .layer = internal::KeysExpected<kSel>},
    {.name = "keys_expected_win", .unit = "keys", .meaning = "of the window, from the formula", .form = {Form::kCount},
     .branch = kWin, .heartbeat = "keys_expected", .series = {"nsa_keys_expected", nullptr, "branch", "win"}, .layer = internal::KeysExpected<kWin>},
    {.name = "audit_queries", .unit = "pairs", .meaning = "sampled queries × heads", .form = {Form::kCount},
     .part = Part::kAudit, .csv = "queries", .layer = [](Layer l) -> Value { return l.audit().queries(); }},
    {.name = "mass_kept", .unit = "0 to 1", .meaning = "share of the softmax mass on the selected blocks", .part = Part::kAudit,
     .curve = true,
     .view = {.label = "attention mass kept", .note = "by the selected blocks, from audits", .chart = 7, .map = true, .most = 1},
     .csv = "selected_mass",
     .series = {"nsa_job_attention_mass_kept",
      "Mean share of the exact attention's softmax mass that the branch (sel, win) keeps, in the last audit (nsa.audit_every).", "branch", "sel"},
     .layer = [](Layer l) { return internal::If(l.audit().has_selected_mass(), l.audit().selected_mass()); }},
    {.name = "mass_kept_p10", .unit = "0 to 1", .meaning = "10th percentile of that share", .keep = Keep::kLeast, .part = Part::kAudit,
     .curve = true,
     .view = {.label = "least attention mass kept", .note = "10th percentile, from audits", .most = 1},
     .csv = "selected_mass_p10",
     .layer = [](Layer l) { return internal::If(l.audit().has_selected_mass_p10(), l.audit().selected_mass_p10()); }},
    {.name = "mass_window", .unit = "0 to 1", .meaning = "share of the softmax mass in the window", .part = Part::kAudit,
     .curve = true,
     .view = {.label = "attention mass in the window", .note = "from audits", .map = true, .most = 1},
     .csv = "window_mass", .series = {"nsa_job_attention_mass_kept", nullptr, "branch", "win"},
     .layer = [](Layer l) { return internal::If(l.audit().has_window_mass(), l.audit().window_mass()); }},
    {.name = "choice_overlap", .unit = "0 to 1", .meaning = "share of the selected tokens that the window reads as well", .part = Part::kAudit,
     .curve = true,
     .view = {.label = "choices inside the window", .note = "share of selected tokens that the window reads too", .map = true, .most = 1},
     .csv = "window_overlap",
     .series = {"nsa_selection_window_overlap_ratio", "Share of the selected tokens that the window reads, too, in the last audit."},
     .layer = [](Layer l) { return internal::If(l.audit().has_choice() && l.audit().has_window_mass(), l.audit().choice().window_overlap_ratio()); },
     .counts = [](Layer l) { return l.audit().choice().rows() > 0; }},
    {.name = "choice_entropy", .unit = "0 to 1", .meaning = "entropy of the free choices over the blocks, as a share of the largest", .part = Part::kAudit,
     .curve = true,
     .view = {.label = "spread of choices", .note = "0: all choose one block, 1: none is preferred", .map = true, .most = 1},
     .csv = "choice_entropy",
     .series = {"nsa_selection_entropy_ratio", "Entropy of the free choices over the blocks as a share of the largest, in the last audit."},
     .layer = [](Layer l) { return internal::If(l.audit().has_choice(), l.audit().choice().entropy_ratio()); }, .counts = internal::Chooses},
    {.name = "choice_agreement", .unit = "0 to 1", .meaning = "share of the free choices that the token before has made", .part = Part::kAudit,
     .curve = true,
     .view = {.label = "choices shared with the token before", .note = "share of free choices", .map = true, .most = 1},
     .csv = "neighbour_agreement",
     .series = {"nsa_selection_agreement_ratio", "Share of free choices that the token before has made, too, in the last audit."},
     .layer = [](Layer l) { return internal::If(l.audit().has_choice(), l.audit().choice().neighbour_agreement_ratio()); }, .counts = internal::Chooses},
    {.name = "free_choices", .unit = "choices", .meaning = "chosen blocks that are not forced", .form = {Form::kCount}, .part = Part::kAudit,
     .csv = "free_choices",
     .layer = [](Layer l) { return internal::If(l.audit().has_choice(), static_cast<double>(l.audit().choice().free_choices())); }},

    {.name = "use", .unit = "0 to 1", .meaning = "share of the last sample period in which a kernel ran", .curve = true,
     .view = {.kind = View::kPercent, .digits = 0, .label = "GPU use", .note = "share of time with a kernel", .from_zero = true},
     .series = {"nsa_gpu_utilization_ratio", "Share of the last sample period in which a kernel ran."},
     .gpu = [](Gpu g) { return internal::If(g.has_utilization_ratio(), g.utilization_ratio()); }},
    {.name = "watts", .unit = "W", .meaning = "power that the GPU takes", .curve = true,
     .view = {.digits = 0, .label = "GPU power", .note = "watts a GPU", .from_zero = true},
     .series = {"nsa_gpu_power_watts", "Power that the GPU takes."}, .gpu = [](Gpu g) { return internal::If(g.has_power_watts(), g.power_watts()); }},
    {.name = "celsius", .unit = "°C", .meaning = "temperature of the GPU", .curve = true,
     .view = {.digits = 0, .label = "GPU temperature", .note = "°C"},
     .series = {"nsa_gpu_temperature_celsius", "Temperature of the GPU."},
     .gpu = [](Gpu g) { return internal::If(g.has_temperature_celsius(), g.temperature_celsius()); }},

    {.name = "val_loss", .unit = "nats a token", .meaning = "mean loss of the validation",
     .form = {Form::kSignificant, 9},
     .view = {.label = "validation loss", .note = "nats a token"},
     .csv = "val_loss", .heartbeat = "loss", .tensorboard = "val/loss",
     .series = {"nsa_job_val_loss", "Last validation loss, nats per token."}, .validation = [](Eval e) { return e.loss(); }},
    {.name = "perplexity", .meaning = "exp of it", .csv = "ppl", .tensorboard = "val/ppl", .validation = [](Eval e) { return std::exp(e.loss()); }},
    {.name = "val_tokens", .unit = "tokens", .meaning = "predicted in the validation",
     .form = {Form::kCount}, .csv = "tokens", .validation = [](Eval e) { return static_cast<double>(e.tokens()); }},
    {.name = "val_seconds", .unit = "s", .meaning = "how long the validation took",
     .form = {Form::kDecimals, 3}, .csv = "seconds",
     .series = {"nsa_job_phase_seconds_total", nullptr, "phase", "evaluation"}, .validation = [](Eval e) { return e.seconds(); }},
};
// clang-format on

consteval size_t ComputedCount() {
  size_t count = 0;
  for (const Quantity& quantity : kQuantities) count += quantity.computed > 0 ? 1 : 0;
  return count;
}

// The quantities that Quantity::computed numbers, in this order.
inline constexpr auto kComputed = [] {
  std::array<const Quantity*, ComputedCount()> computed = {};
  for (const Quantity& quantity : kQuantities) {
    if (quantity.computed > 0) computed.at(quantity.computed - 1) = &quantity;
  }
  return computed;
}();

// How many quantities of a kind have a curve.
consteval size_t CurveCount(Of of) {
  size_t count = 0;
  for (const Quantity& quantity : kQuantities) {
    if (quantity.of() == of && quantity.curve) ++count;
  }
  return count;
}

// The quantities of a kind that have a curve, in the order of the table.
template <Of kOf>
inline constexpr auto kCurves = [] {
  std::array<const Quantity*, CurveCount(kOf)> curves = {};
  size_t i = 0;
  for (const Quantity& quantity : kQuantities) {
    if (quantity.of() == kOf && quantity.curve) curves[i++] = &quantity;
  }
  return curves;
}();

// Their names, in the same order.
template <Of kOf>
inline constexpr auto kCurveNames = [] {
  std::array<std::string_view, CurveCount(kOf)> names;
  size_t i = 0;
  for (const Quantity* quantity : kCurves<kOf>) names[i++] = quantity->name;
  return names;
}();

}  // namespace nsa::record
