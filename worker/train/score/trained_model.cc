#include "worker/train/score/trained_model.h"

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/estimate/estimate.h"
#include "common/job/data_source.h"
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

// Refuses a model trained on token files that its job's tokenizer did not write.
absl::Status CheckTokenFiles(const v1::DataSpec& data, int32_t vocab) {
  if (DataSourceInfoOf(data.source()).format != DocumentFormat::kTokens) return absl::OkStatus();
  if (data.tokenizer() == v1::TOKENIZER_UNSPECIFIED) {
    return absl::FailedPreconditionError(
        "data.tokenizer: not set: the model was trained on token files, and its job does not say "
        "which tokenizer wrote them; text can be neither scored nor sampled. Set data.tokenizer in "
        "jobs on token files");
  }
  if (data.tokenizer() == v1::TOKENIZER_BYTE && vocab > 256) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data.tokenizer: byte (256 tokens), but the model was trained on token files with "
        "model.vocab ",
        vocab, ": another tokenizer wrote them. Set data.tokenizer in jobs on token files"));
  }
  return absl::OkStatus();
}

// Refuses a tokenizer that does not fit the model.
absl::Status CheckTokenizer(const TextTokenizer& tokenizer, const v1::DataSpec& data,
                            int32_t vocab) {
  if (tokenizer.vocab() > vocab) {
    return absl::FailedPreconditionError(
        absl::StrCat("model.vocab: ", vocab, " (the tokenizer's ", tokenizer.vocab(),
                     " at least): this model was not trained on text"));
  }
  if (!data.has_separator()) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(const int32_t separator, ParseSeparator(data.separator()));
  if (separator == kNoSeparator || separator == tokenizer.separator()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("data.separator: ", separator, " (the tokenizer's is ", tokenizer.separator(),
                   "): another tokenizer wrote the token files of this model"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainedModel>> TrainedModel::Load(
    const std::filesystem::path& checkpoint) {
  NSA_ASSIGN_OR_RETURN(const std::filesystem::path path, FindCheckpoint(checkpoint));
  auto trained = std::unique_ptr<TrainedModel>(new TrainedModel());
  NSA_ASSIGN_OR_RETURN(trained->state_, ReadCheckpointState(path));
  const v1::JobSpec& spec = trained->state_.spec();
  trained->vocab_ = VocabOf(spec);
  NSA_RETURN_IF_ERROR(CheckTokenFiles(spec.data(), trained->vocab_));
  NSA_ASSIGN_OR_RETURN(trained->tokenizer_, MakeTokenizer(spec.data()));
  NSA_RETURN_IF_ERROR(CheckTokenizer(*trained->tokenizer_, spec.data(), trained->vocab_));
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
