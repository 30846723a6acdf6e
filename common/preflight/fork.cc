#include "common/preflight/fork.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/estimate/estimate.h"
#include "common/estimate/layers.h"
#include "common/estimate/optimizer_traits.h"
#include "common/estimate/schedule.h"
#include "common/job/flat_keys.h"
#include "common/job/load.h"
#include "google/protobuf/util/message_differencer.h"

namespace nsa {
namespace {

// The parts of a job that decide its weights, with defaults filled in.
v1::JobSpec Trained(v1::JobSpec spec) {
  ApplyDefaults(&spec);
  v1::JobSpec trained;
  *trained.mutable_model() = spec.model();
  *trained.mutable_nsa() = spec.nsa();
  trained.mutable_nsa()->clear_audit_every();
  *trained.mutable_data() = spec.data();
  *trained.mutable_train() = spec.train();
  trained.mutable_train()->clear_out_dir();
  return trained;
}

// The parts that decide the names and shapes of the parameters, and what a token means.
v1::JobSpec Shaped(const v1::JobSpec& spec) {
  const v1::JobSpec trained = Trained(spec);
  v1::JobSpec shaped;
  *shaped.mutable_model() = trained.model();
  shaped.mutable_model()->clear_rope_base();
  shaped.mutable_model()->clear_rope_scale();
  shaped.mutable_model()->clear_activation();
  shaped.mutable_model()->clear_qk_norm();
  shaped.mutable_model()->clear_norm_eps();
  shaped.mutable_model()->clear_rope_scaling();
  shaped.mutable_model()->clear_rope_layers();
  shaped.mutable_model()->set_vocab(VocabOf(trained));
  v1::NsaSpec* nsa = shaped.mutable_nsa();
  // The branches of all layers, written in one way. Preflight refuses more than 512 layers.
  std::vector<LayerAttention> layers =
      AllLayersOf(trained.nsa(), std::clamp(trained.model().n_layers(), 1, 512));
  // A full layer has the parameters of one with a window.
  for (LayerAttention& layer : layers) layer.full = false;
  const bool compresses =
      std::ranges::any_of(layers, [](const LayerAttention& layer) { return layer.branches[kCmp]; });
  SetLayers(std::move(layers), nsa);
  if (compresses) {
    nsa->set_phi(trained.nsa().phi());
    // The MLP has a position embedding for each token of a block.
    if (nsa->phi() == v1::PHI_MLP) nsa->set_l(trained.nsa().l());
  }
  shaped.mutable_data()->set_tokenizer(trained.data().tokenizer());
  return shaped;
}

// The keys that a job sets and their values, each value of a list with a key of its own.
std::map<std::string, std::string> Values(const v1::JobSpec& spec) {
  std::map<std::string, std::string> values;
  for (const FlatKey& flat : FlatKeys(spec, UnsetKeys::kLeftOut)) {
    if (flat.values.empty()) values[flat.key] = flat.Text();
    for (size_t i = 0; i < flat.values.size(); ++i) {
      const std::string key = flat.is_list ? absl::StrFormat("%s[%d]", flat.key, i) : flat.key;
      values[key] = flat.is_text ? YamlScalar(flat.values[i]) : flat.values[i];
    }
  }
  return values;
}

}  // namespace

std::string Differences(const v1::JobSpec& from, const v1::JobSpec& to) {
  if (google::protobuf::util::MessageDifferencer::Equals(from, to)) return "";
  const std::map<std::string, std::string> before = Values(from), after = Values(to);
  std::vector<std::string> lines;
  for (const auto& [key, value] : before) {
    const auto now = after.find(key);
    if (now == after.end()) {
      lines.push_back(absl::StrCat("deleted: ", key, ": ", value));
    } else if (now->second != value) {
      lines.push_back(absl::StrCat(key, ": ", value, " -> ", now->second));
    }
  }
  for (const auto& [key, value] : after) {
    if (!before.contains(key)) lines.push_back(absl::StrCat("added: ", key, ": ", value));
  }
  // What this version does not know has no key here.
  return lines.empty() ? "keys of another version" : absl::StrJoin(lines, "; ");
}

std::string FixedDifferences(const v1::JobSpec& before, const v1::JobSpec& after) {
  const auto fixed = [](v1::JobSpec spec) {
    ApplyDefaults(&spec);
    spec.clear_labels();
    spec.clear_priority();
    spec.clear_sweep();
    spec.clear_restart();
    spec.clear_guard();
    spec.clear_limits();
    spec.clear_preflight();
    spec.clear_sample();
    spec.clear_after();
    spec.clear_not_before();
    spec.clear_alerts();
    spec.mutable_nsa()->clear_audit_every();
    spec.mutable_data()->clear_loader_timeout_seconds();
    spec.mutable_data()->clear_allow_synthetic_fallback();
    v1::TrainSpec& train = *spec.mutable_train();
    train.clear_steps();
    train.clear_log_every();
    train.clear_eval_every();
    train.clear_eval_batches();
    train.clear_save_every();
    train.clear_keep_checkpoints();
    train.clear_checkpoint_url();
    return spec;
  };
  return Differences(fixed(before), fixed(after));
}

std::optional<ForkProblem> CheckWeights(const v1::CheckpointState& from, const v1::JobSpec& job) {
  const std::string differences = Differences(Shaped(from.spec()), Shaped(job));
  if (differences.empty()) return std::nullopt;
  return ForkProblem{
      absl::StrFormat("a checkpoint of another model (its parameters and its tokenizer must be the "
                      "same): %s",
                      differences),
      "undo the change, or take another checkpoint"};
}

std::optional<ForkProblem> CheckFork(const v1::CheckpointState& from, const v1::JobSpec& job) {
  if (std::optional<ForkProblem> problem = CheckWeights(from, job)) return problem;
  const std::string_view before = TraitsOf(from.spec().train()).word;
  if (const std::string_view now = TraitsOf(job.train()).word; now != before) {
    return ForkProblem{
        absl::StrFormat("a checkpoint of train.optimizer: %s (this job's is %s): its moments mean "
                        "something else",
                        before, now),
        absl::StrFormat("set train.optimizer: %s, or take the weights alone with restart.init",
                        before)};
  }
  if (from.step() >= job.train().steps()) {
    return ForkProblem{absl::StrFormat("a checkpoint of step %d (less than train.steps = %d)",
                                       from.step(), job.train().steps()),
                       "raise train.steps: the checkpoint's steps count as done"};
  }
  return std::nullopt;
}

std::optional<ForkProblem> CheckOwn(const v1::CheckpointState& from, const v1::JobSpec& job) {
  if (from.job_hash() == JobHash(job)) return std::nullopt;
  const std::string differences = Differences(HashedParts(from.spec()), HashedParts(job));
  return ForkProblem{
      absl::StrFormat("holds checkpoints of a job that differs: %s",
                      differences.empty() ? "a default of another version" : differences),
      "undo the change, or take another train.out_dir: restart.resume continues there from these "
      "checkpoints, restart.init begins with their weights"};
}

std::string ForkDifferences(const v1::JobSpec& from, const v1::JobSpec& to) {
  return Differences(Trained(from), Trained(to));
}

std::optional<std::string> ScheduleJump(const v1::CheckpointState& from, const v1::JobSpec& job) {
  const v1::TrainSpec before = Trained(from.spec()).train();
  const v1::TrainSpec after = Trained(job).train();
  const int64_t next = from.step() + 1;
  const double old_rate = LearningRate(before, next), new_rate = LearningRate(after, next);
  if (next > after.steps() || std::abs(new_rate - old_rate) <= 1e-9 * old_rate) {
    return std::nullopt;
  }
  return absl::StrFormat(
      "train.steps: %d -> %d changes the learning rate of step %d from %.3g to "
      "%.3g",
      before.steps(), after.steps(), next, old_rate, new_rate);
}

}  // namespace nsa
