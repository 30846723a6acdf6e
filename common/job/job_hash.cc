#include "absl/strings/str_format.h"
#include "common/job/load.h"
#include "xxhash.h"

namespace nsa {

v1::JobSpec HashedParts(const v1::JobSpec& spec) {
  v1::JobSpec full = spec;
  ApplyDefaults(&full);

  v1::JobSpec fixed;
  *fixed.mutable_model() = full.model();
  *fixed.mutable_nsa() = full.nsa();
  *fixed.mutable_data() = full.data();
  *fixed.mutable_train() = full.train();
  fixed.mutable_nsa()->clear_audit_every();
  fixed.mutable_data()->clear_loader_timeout_seconds();
  fixed.mutable_data()->clear_allow_synthetic_fallback();
  // A key that is new since the first checkpoints counts only where it differs from its default.
  if (!fixed.model().qk_norm()) fixed.mutable_model()->clear_qk_norm();
  if (fixed.model().activation() == v1::ACTIVATION_SILU) fixed.mutable_model()->clear_activation();
  v1::TrainSpec* train = fixed.mutable_train();
  if (train->optimizer() == v1::OPTIMIZER_ADAMW) train->clear_optimizer();
  train->clear_steps();
  train->clear_log_every();
  train->clear_eval_every();
  train->clear_eval_batches();
  train->clear_save_every();
  train->clear_keep_checkpoints();
  train->clear_checkpoint_url();
  train->clear_out_dir();
  return fixed;
}

std::string JobHash(const v1::JobSpec& spec) {
  // The YAML text is canonical: fields in order of number, maps sorted, shortest exact numbers. A
  // field that is added to the schema later does not change any hash, as long as it has no default.
  const std::string text = ToYaml(HashedParts(spec));
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

}  // namespace nsa
