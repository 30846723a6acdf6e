#include "worker/train/score/trained_model.h"

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/estimate/estimate.h"
#include "worker/train/checkpoint/checkpoint.h"

namespace nsa {
namespace {

absl::StatusOr<std::filesystem::path> FindCheckpoint(const std::filesystem::path& given) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::canonical(given, error);
  if (error) return absl::ErrnoToStatus(error.value(), given.string());
  if (std::filesystem::exists(path / "state.json", error)) return path;
  NSA_ASSIGN_OR_RETURN(const NewestGood newest, FindNewestGood(path));
  for (const std::string& problem : newest.rejected) spdlog::warn("{}", problem);
  if (!newest.found) {
    return absl::NotFoundError(absl::StrCat(
        given.string(), ": no checkpoint (a folder with state.json, or an out_dir); name one"));
  }
  return newest.entry.path;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainedModel>> TrainedModel::Load(
    const std::filesystem::path& checkpoint) {
  NSA_ASSIGN_OR_RETURN(const std::filesystem::path path, FindCheckpoint(checkpoint));
  auto trained = std::unique_ptr<TrainedModel>(new TrainedModel());
  NSA_ASSIGN_OR_RETURN(trained->state_, ReadCheckpointState(path));
  const v1::JobSpec& spec = trained->state_.spec();
  trained->vocab_ = VocabOf(spec);
  NSA_ASSIGN_OR_RETURN(trained->tokenizer_, MakeTokenizer(spec.data()));
  if (trained->tokenizer_->vocab() > trained->vocab_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "model.vocab: ", trained->vocab_, " (the tokenizer's ", trained->tokenizer_->vocab(),
        " at least): this model was not trained on text"));
  }
  trained->layout_ = std::make_unique<ParameterLayout>(spec);
  trained->parameters_ = std::make_unique<Arena>(trained->layout_.get());
  RestoreTarget target;
  target.layout = trained->layout_.get();
  target.parameters = trained->parameters_->flat();
  NSA_RETURN_IF_ERROR(LoadCheckpoint(path, "", target).status());
  return trained;
}

absl::StatusOr<std::unique_ptr<Model>> TrainedModel::MakeModel(int32_t batch,
                                                               int32_t seq_len) const {
  return Model::Create(spec(), {.batch = batch, .seq_len = seq_len}, parameters_.get());
}

}  // namespace nsa
