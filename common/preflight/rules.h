// The table of preflight rules. Internal to preflight. The table is divided over the files that the
// functions below name.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/estimate/memory/memory.h"
#include "common/job/data/data_files.h"
#include "common/job/data/line_sample.h"
#include "common/job/resume_from.h"
#include "common/preflight/preflight.h"
#include "nsa/v1/checkpoint.pb.h"

namespace nsa {

// Where the job begins. Read once for all rules, so that they speak of the same checkpoints while
// another job writes or deletes some. As it is here if the files may not be read.
struct StartFacts {
  ResumeFrom from = ResumeFrom::kOwn;
  int64_t own = 0;  // checkpoints in out_dir
  // Of the checkpoint at which the job continues, or why none of them can be read; nothing if there
  // is none.
  std::optional<absl::StatusOr<v1::CheckpointState>> state;
};
StartFacts ReadStart(const v1::JobSpec& spec, const PreflightContext& context);

// The input of a rule. The device is cpu or cuda and the precision is set.
struct PreflightFacts {
  const v1::JobSpec& spec;
  const PreflightContext& context;
  const StartFacts& start;
  v1::PreflightPolicy policy = v1::PREFLIGHT_POLICY_UNSPECIFIED;
  // What the job's patterns stand for, looked up once for all rules.
  std::shared_ptr<PathExpander> paths = std::make_shared<PathExpander>(context.abandoned);
  // Samples of files of JSON lines, by path, text_field and the keys of the filter, taken once for
  // all rules.
  using LineSamples = std::map<std::tuple<std::string, std::string, std::string>, LineSample>;
  std::shared_ptr<LineSamples> line_samples = std::make_shared<LineSamples>();
  // What CorpusMemory() measured; nothing before the first call.
  std::shared_ptr<std::optional<int64_t>> corpus_memory =
      std::make_shared<std::optional<int64_t>>();

  // Nobody needs the report any more.
  bool abandoned() const { return context.abandoned && context.abandoned(); }
  bool cuda() const { return spec.runtime().device() == v1::DEVICE_CUDA; }
  const MachineView* machine() const { return context.machine; }
  // Ranks run, or may run, as another user than this process, which cannot tell what that user may
  // write.
  bool as_another_user() const {
    return machine() != nullptr ? machine()->unix_users : context.has_unix_user;
  }
  int64_t ranks() const { return spec.resources().gpus(); }
  int64_t machines() const { return std::max(spec.resources().nodes(), 1); }
  // On the machine with the most of them.
  int64_t ranks_on_machine() const { return (ranks() + machines() - 1) / machines(); }
  // Of a job that is submitted and may start with fewer ranks: with the fewest of them.
  int64_t least_ranks_on_machine() const;
};

struct Problem {
  std::string field;
  std::string problem;  // what: value (limit)
  std::string fix;
};
using Problems = std::vector<Problem>;

struct PreflightRule {
  std::string_view id;
  std::string_view summary;
  // The severity of its findings under each policy. SEVERITY_UNSPECIFIED: the rule does not run.
  v1::Severity production;
  v1::Severity experiment;
  bool waivable;
  // How the rule uses the sizes of the model, the batch and the ranks.
  //   kNothing      does not calculate with them.
  //   kSizes        calculates with them, and runs only if every kGuardsSizes rule passes.
  //   kGuardsSizes  checks them. If it fails, the kSizes rules and the estimate are skipped,
  //                 because they could divide by zero or overflow.
  enum Needs { kNothing, kSizes, kGuardsSizes } needs;
  Problems (*check)(const PreflightFacts& facts);
  MayPass may_pass = MayPass::kNo;
};

// The words of the tables' rows.
inline constexpr v1::Severity kError = v1::SEVERITY_ERROR;
inline constexpr v1::Severity kWarning = v1::SEVERITY_WARNING;
inline constexpr v1::Severity kInfo = v1::SEVERITY_INFO;
inline constexpr v1::Severity kOff = v1::SEVERITY_UNSPECIFIED;
inline constexpr auto kNothing = PreflightRule::kNothing;
inline constexpr auto kSizes = PreflightRule::kSizes;
inline constexpr auto kGuardsSizes = PreflightRule::kGuardsSizes;
inline constexpr MayPass kMayPass = MayPass::kYes;

// A job of this many steps, or of this estimated time, is production whatever it calls itself.
constexpr int64_t kLongRunSteps = 5000;
constexpr double kLongRunSeconds = 3600;

std::span<const PreflightRule> RangeRules();    // range_rules.cc: every number within limits
std::span<const PreflightRule> ShapeRules();    // shape_rules.cc: model, attention, batch
std::span<const PreflightRule> RunRules();      // run_rules.cc: precision, checkpoints, guards
std::span<const PreflightRule> FewerRules();    // fewer_rules.cc: starts with fewer ranks
std::span<const PreflightRule> LinkRules();     // link_rules.cc: the time of communication
std::span<const PreflightRule> LimitRules();    // limit_rules.cc: hours, cordoned machines
std::span<const PreflightRule> GroupRules();    // group_rules.cc: several machines together
std::span<const PreflightRule> AdviceRules();   // advice_rules.cc: batch, learning rate, decay
std::span<const PreflightRule> DataRules();     // data_rules.cc: data files
std::span<const PreflightRule> ContentRules();  // content_rules.cc: what the files hold
std::span<const PreflightRule> FilterRules();   // filter_rules.cc: records chosen by their fields
std::span<const PreflightRule> MixRules();      // mix_rules.cc: fields, mixtures, named sets
std::span<const PreflightRule> CorpusRules();   // corpus_rules.cc: amount of data, validation
std::span<const PreflightRule> SampleRules();   // sample_rules.cc: texts while the job trains
std::span<const PreflightRule> QueueRules();    // queue_rules.cc: what the job waits for, alerts
std::span<const PreflightRule> MachineRules();  // machine_rules.cc: GPUs, memory, disk, out_dir
std::span<const PreflightRule> StartRules();    // start_rules.cc: checkpoints to begin with
std::span<const PreflightRule> NameRules();     // name_rules.cc: names, paths, waivers

// All rules, in the order of the table in docs/preflight.md.
std::vector<PreflightRule> AllRules();

// Where the job begins, human-readable: "continues from step 120 of /out/demo". Empty if out_dir
// may not be read.
std::string StartText(const PreflightFacts& facts);

// Peak host memory in bytes in which one rank reads and holds the corpus, estimated from the sizes
// of the files, which are looked at once. Large data is not held (common/job/data/large_data.h). 0
// if tokens are generated, or the files may not be read or cannot be found. With data.stream, of
// its windows.
int64_t CorpusMemory(const PreflightFacts& facts);

// MemoryEstimate() of the job. On the CPU, where a rank has only one memory, with the corpus.
std::vector<MemoryItem> RankMemory(const PreflightFacts& facts);

// Memory in bytes that one rank can use on the machine, which must be known; 0 if that is not
// known.
int64_t MemoryOfRank(const PreflightFacts& facts);

// Expected tokens per second of the job on its machine. If the machine is not known, an A100 is
// assumed, or for a CPU job one core per rank. Call it only if the kGuardsSizes rules pass.
double ExpectedSpeed(const PreflightFacts& facts);

// Where ExpectedSpeed() comes from, for example "H200, measured 2026-11-27".
std::string ExpectedSpeedSource(const PreflightFacts& facts);

// The steps that the checkpoint at which the job begins has done; 0 if it begins afresh or the
// files may not be read.
int64_t StepsDone(const PreflightFacts& facts);

// The steps that it has still to do.
int64_t StepsLeft(const PreflightFacts& facts);

// Expected seconds of one step, without validation and checkpoints, of the steps that are left, and
// of all steps of the job. Call them only if the kGuardsSizes rules pass.
double ExpectedStepSeconds(const PreflightFacts& facts);
double ExpectedSeconds(const PreflightFacts& facts);
double ExpectedSecondsOfAll(const PreflightFacts& facts);

// Predicted tokens of all steps of the job.
double TokensOfRun(const PreflightFacts& facts);

// What ranks send each other in a step, and how long it takes beside the step, for the table of
// estimates; empty for a job that sends nothing between GPUs or machines. Call it only if the
// kGuardsSizes rules pass.
std::vector<v1::EstimateItem> LinkEstimates(const PreflightFacts& facts);

// "0.25 s", "42 s", "12 min", "2.2 h", "3.0 days".
std::string Duration(double seconds);

// "1.25 GiB".
std::string Bytes(double bytes);

}  // namespace nsa
