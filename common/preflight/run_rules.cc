// Rules that protect a long run: precision, checkpoints, model size, schedule, guards.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/count.h"
#include "common/estimate/estimate.h"
#include "common/estimate/shares.h"
#include "common/job/data/url.h"
#include "common/preflight/data/data_facts.h"
#include "common/preflight/preflight.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

Problems PrecisionNotBf16(const PreflightFacts& facts) {
  if (!facts.cuda() || facts.spec.runtime().precision() == v1::PRECISION_BF16) return {};
  return {{"runtime.precision", "fp32 on cuda (must be bf16): the GPU kernels support only bf16",
           "set precision: bf16; master weights and moments stay fp32"}};
}

Problems CpuBf16(const PreflightFacts& facts) {
  if (facts.cuda() || facts.spec.runtime().precision() != v1::PRECISION_BF16) return {};
  return {{"runtime.precision", "bf16 on the cpu (must be fp32)", "set precision: fp32"}};
}

// runtime.shard_optimizer is an older name of two levels, and not every level is for every job
// (RulesOut()).
Problems ShardInvalid(const PreflightFacts& facts) {
  const v1::RuntimeSpec& runtime = facts.spec.runtime();
  Problems problems;
  const v1::Shard older = runtime.shard_optimizer() ? v1::SHARD_OPTIMIZER : v1::SHARD_NONE;
  if (runtime.has_shard_optimizer() && runtime.shard() != v1::SHARD_UNSPECIFIED &&
      runtime.shard() != older) {
    problems.push_back({"runtime.shard_optimizer",
                        absl::StrFormat("%s beside shard: %s (it is another name of shard: %s)",
                                        runtime.shard_optimizer() ? "true" : "false",
                                        ShardName(runtime.shard()), ShardName(older)),
                        "remove it"});
  }
  const std::string_view why = RulesOut(runtime.shard(), facts.spec);
  if (runtime.shard() != v1::SHARD_AUTO && !why.empty()) {
    const std::span<const v1::Shard> levels = LevelsOf(facts.spec);
    const auto add_name = [](std::string* out, v1::Shard shard) { out->append(ShardName(shard)); };
    problems.push_back({"runtime.shard",
                        absl::StrFormat("%s with %s (%s or auto)", ShardName(runtime.shard()), why,
                                        absl::StrJoin(levels, ", ", add_name)),
                        absl::StrFormat("set shard: %s", ShardName(levels.back()))});
  }
  return problems;
}

// A tenth of the run, or less where that is more work than a fault may lose.
int64_t GoodSaveEvery(const PreflightFacts& facts) {
  const int64_t tenth = std::max<int64_t>(1, facts.spec.train().steps() / 10);
  if (!CheckSizes(facts.spec).ok()) return tenth;
  const double most = facts.spec.preflight().max_lost_seconds() / ExpectedStepSeconds(facts);
  return most >= static_cast<double>(tenth) ? tenth
                                            : std::max<int64_t>(1, static_cast<int64_t>(most));
}

Problems NoCheckpointCadence(const PreflightFacts& facts) {
  if (facts.spec.train().save_every() > 0) return {};
  return {
      {"train.save_every",
       absl::StrFormat("0 (more than 0): no checkpoint before step %d, so any fault loses the run",
                       facts.spec.train().steps()),
       absl::StrFormat("set save_every: %d", GoodSaveEvery(facts))}};
}

Problems SaveEveryTooLarge(const PreflightFacts& facts) {
  const auto& train = facts.spec.train();
  if (train.save_every() <= train.steps()) return {};
  return {{"train.save_every",
           absl::StrFormat("%d (at most steps = %d): no checkpoint before the end",
                           train.save_every(), train.steps()),
           absl::StrFormat("set save_every: %d", GoodSaveEvery(facts))}};
}

// The steps that a fault loses at worst, just before a checkpoint. Without checkpoints, or with
// none before the end, these are all steps.
int64_t StepsBetweenCheckpoints(const v1::TrainSpec& train) {
  const int64_t every = train.save_every();
  return every > 0 ? std::min<int64_t>(every, train.steps()) : train.steps();
}

// A launch is not judged: the machine may be slower than the one at submit.
Problems LostWork(const PreflightFacts& facts) {
  if (!facts.context.job_id.empty()) return {};
  const double step = ExpectedStepSeconds(facts);
  const double limit = facts.spec.preflight().max_lost_seconds();
  const int64_t steps = StepsBetweenCheckpoints(facts.spec.train());
  const double lost = static_cast<double>(steps) * step;
  if (!(lost > limit)) return {};
  return {{"train.save_every",
           absl::StrFormat("%d: %s of training between two checkpoints (at most %s), which a fault "
                           "would lose",
                           facts.spec.train().save_every(), Duration(lost), Duration(limit)),
           step > limit ? std::string("make the steps smaller, or raise preflight.max_lost_seconds")
                        : absl::StrFormat("set save_every: %d or less, or raise "
                                          "preflight.max_lost_seconds",
                                          static_cast<int64_t>(limit / step))}};
}

Problems KeepCheckpointsTooFew(const PreflightFacts& facts) {
  const int keep = facts.spec.train().keep_checkpoints();
  if (keep >= 2) return {};
  return {{"train.keep_checkpoints",
           absl::StrFormat("%d (at least 2): the newest one may be damaged", keep),
           "set keep_checkpoints: 2 or more"}};
}

Problems CheckpointUrl(const PreflightFacts& facts) {
  const std::string& url = facts.spec.train().checkpoint_url();
  if (url.empty()) return {};
  const absl::Status status = ParseS3Url(url, /*folder=*/true).status();
  if (status.ok()) return {};
  ProblemAndFix text = SplitFix(std::string(status.message()));
  if (text.fix.empty()) text.fix = "write s3://BUCKET/FOLDER";
  return {{"train.checkpoint_url", std::move(text.problem), std::move(text.fix)}};
}

Problems GradientCheckpointingOff(const PreflightFacts& facts) {
  if (!facts.cuda() || facts.spec.runtime().gradient_checkpointing()) return {};
  return {{"runtime.gradient_checkpointing",
           "off (must be on): the activations of all layers are kept even if they do not fit",
           "set gradient_checkpointing: true, which recomputes only what does not fit into the "
           "GPU's memory, or waive this rule"}};
}

constexpr int64_t kSmallParameters = 10'000'000;
constexpr int kSmallDim = 256;
constexpr int kSmallSeqLen = 512;

Problems ModelTooSmallForRun(const PreflightFacts& facts) {
  const auto& spec = facts.spec;
  if (spec.train().steps() < kLongRunSteps) return {};
  std::vector<std::string> small;
  if (const int64_t count = ParameterCount(spec); count < kSmallParameters) {
    small.push_back(
        absl::StrFormat("%s parameters (at least %s)", Grouped(count), Grouped(kSmallParameters)));
  }
  if (spec.model().dim() < kSmallDim) {
    small.push_back(absl::StrFormat("dim %d (at least %d)", spec.model().dim(), kSmallDim));
  }
  if (spec.train().seq_len() < kSmallSeqLen) {
    small.push_back(
        absl::StrFormat("seq_len %d (at least %d)", spec.train().seq_len(), kSmallSeqLen));
  }
  if (small.empty()) return {};
  return {{"model.dim",
           absl::StrFormat("too small for %s steps: %s", Grouped(spec.train().steps()),
                           absl::StrJoin(small, ", ")),
           "use a production configuration (configs/jobs/train_50k.yaml), or fewer steps"}};
}

// AdamW changes a weight by about lr in each step, whatever the size of the gradient. The initial
// weights have a standard deviation of 0.02, so at lr 0.01 two steps can overwrite them. Decoders
// of 10 million to 100 billion parameters are trained with 1e-3 down to 6e-5 (GPT-3: 6e-4 at 125
// million parameters, 6e-5 at 175 billion), those with under a million with up to 4e-3
// (configs/jobs/openstax_cpu.yaml). A higher value is usually a missing minus sign in the exponent,
// but it may be intended, so this is only a warning.
constexpr double kLargestLr = 1e-2;

Problems LrTooLarge(const PreflightFacts& facts) {
  const double lr = facts.spec.train().lr();
  if (lr <= kLargestLr) return {};
  return {
      {"train.lr",
       absl::StrFormat("%s (at most %s with AdamW): each step changes a weight by about that "
                       "much, and the initial weights are about 0.02",
                       Number(lr), Number(kLargestLr)),
       "set lr to 2.0e-4 to 1.0e-3, or up to 4.0e-3 for a model with under a million parameters"}};
}

Problems LrWarmupTooLong(const PreflightFacts& facts) {
  const auto& train = facts.spec.train();
  if (train.warmup_steps() <= train.steps() / 2) return {};
  return {
      {"train.warmup_steps",
       absl::StrFormat("%d (at most half of steps, %d)", train.warmup_steps(), train.steps() / 2),
       absl::StrFormat("set warmup_steps: %d", train.steps() / 25)}};
}

std::string HalfOfExpected(const PreflightFacts& facts) {
  return absl::StrFormat("set it to about half of the expected %s tok/s (%s)",
                         Grouped(static_cast<int64_t>(ExpectedSpeed(facts))),
                         ExpectedSpeedSource(facts));
}

Problems ThroughputGuardOff(const PreflightFacts& facts) {
  const v1::GuardSpec& guard = facts.spec.guard();
  // Without the key the worker measures a floor on a GPU (worker/train/step/step_guards.h).
  if (!guard.has_min_tokens_per_second() || guard.min_tokens_per_second() > 0) return {};
  return {{"guard.min_tokens_per_second",
           "0 (more than 0): nothing notices that the run has become slow", HalfOfExpected(facts)}};
}

Problems ThroughputGuardTooLow(const PreflightFacts& facts) {
  const double floor = facts.spec.guard().min_tokens_per_second();
  const double third = ExpectedSpeed(facts) / 3;
  if (facts.machine() == nullptr || floor <= 0 || floor >= third) return {};
  return {{"guard.min_tokens_per_second",
           absl::StrFormat("%s (at least a third of the expected speed, %s tok/s): a run that has "
                           "become much slower would go on",
                           Number(floor), Grouped(static_cast<int64_t>(third))),
           HalfOfExpected(facts)}};
}

Problems ThroughputGuardTooHigh(const PreflightFacts& facts) {
  const double floor = facts.spec.guard().min_tokens_per_second();
  if (facts.machine() == nullptr || floor <= ExpectedSpeed(facts)) return {};
  return {{"guard.min_tokens_per_second",
           absl::StrFormat("%s (at most the expected %s tok/s): the guard would end a healthy run",
                           Number(floor), Grouped(static_cast<int64_t>(ExpectedSpeed(facts)))),
           HalfOfExpected(facts)}};
}

Problems HangTimeoutShort(const PreflightFacts& facts) {
  if (facts.machine() == nullptr) return {};
  const double step = ExpectedStepSeconds(facts);
  const double timeout = facts.spec.restart().hang_timeout_seconds();
  if (timeout >= 5 * step) return {};
  return {{"restart.hang_timeout_seconds",
           absl::StrFormat("%s (at least five steps; a step is expected to take about %s)",
                           Number(timeout), Duration(step)),
           absl::StrFormat("set it to at least %.0f", 5 * step + 1)}};
}

Problems LongRun(const PreflightFacts& facts) {
  const auto& train = facts.spec.train();
  if (ExpectedSecondsOfAll(facts) < kLongRunSeconds && train.steps() < kLongRunSteps) return {};
  const int64_t steps = StepsLeft(facts);
  const double tokens = static_cast<double>(steps) * static_cast<double>(TokensPerStep(facts.spec));
  const bool overruled = facts.spec.preflight().policy() == v1::PREFLIGHT_POLICY_EXPERIMENT;
  return {{"train.steps",
           absl::StrFormat("%s%s steps are about %s and %s tokens: production rules apply",
                           StepsDone(facts) > 0 ? "the last " : "", Grouped(steps),
                           Duration(ExpectedSeconds(facts)), Number(std::round(tokens))),
           overruled ? "policy: experiment has no effect on a run of 5,000 steps or an hour; fix "
                       "the job, or waive single rules with reasons in preflight.waive"
                     : "follow it with `nsactl watch`"}};
}

constexpr PreflightRule kRunRules[] = {
    {"PRECISION_NOT_BF16", "fp32 on cuda", kError, kError, false, kNothing, PrecisionNotBf16},
    {"CPU_BF16", "bf16 on the cpu", kError, kError, false, kNothing, CpuBf16},
    {"SHARD_INVALID",
     "shard is a level that another key rules out, or shard_optimizer says "
     "another one",
     kError, kError, false, kNothing, ShardInvalid},
    {"NO_CHECKPOINT_CADENCE", "save_every is 0", kError, kInfo, true, kNothing,
     NoCheckpointCadence},
    {"SAVE_EVERY_TOO_LARGE", "save_every is more than steps", kError, kWarning, true, kNothing,
     SaveEveryTooLarge},
    {"LOST_WORK", "a fault would lose more training time than preflight.max_lost_seconds", kError,
     kError, true, kSizes, LostWork},
    {"KEEP_CHECKPOINTS_TOO_FEW", "fewer than two checkpoints are kept", kError, kError, false,
     kNothing, KeepCheckpointsTooFew},
    {"CHECKPOINT_URL", "checkpoint_url is no folder of an object store", kError, kError, false,
     kNothing, CheckpointUrl},
    {"GRADIENT_CHECKPOINTING_OFF", "gradient checkpointing is off on cuda", kError, kOff, true,
     kNothing, GradientCheckpointingOff},
    {"MODEL_TOO_SMALL_FOR_RUN", "the model is too small for 5,000 steps or more", kError, kOff,
     true, kSizes, ModelTooSmallForRun},
    {"LR_TOO_LARGE", "the learning rate is far above what trains a transformer", kWarning, kWarning,
     true, kNothing, LrTooLarge},
    {"LR_WARMUP_TOO_LONG", "warm-up takes more than half of the run", kError, kWarning, true,
     kNothing, LrWarmupTooLong},
    {"THROUGHPUT_GUARD_OFF", "the throughput guard is turned off", kError, kOff, true, kSizes,
     ThroughputGuardOff},
    {"THROUGHPUT_GUARD_TOO_LOW", "the throughput floor is below a third of the expected speed",
     kWarning, kWarning, true, kSizes, ThroughputGuardTooLow},
    {"THROUGHPUT_GUARD_TOO_HIGH", "the throughput floor is above the expected speed", kWarning,
     kWarning, true, kSizes, ThroughputGuardTooHigh},
    {"HANG_TIMEOUT_SHORT", "the hang timeout is under five expected steps", kWarning, kWarning,
     true, kSizes, HangTimeoutShort},
    {"LONG_RUN", "expected hours and tokens of a run over an hour or 5,000 steps", kInfo, kInfo,
     true, kSizes, LongRun},
};

}  // namespace

std::span<const PreflightRule> RunRules() { return kRunRules; }

}  // namespace nsa
