#include "worker/train/score/trained_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/estimate/estimate.h"
#include "common/preflight/preflight.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/checkpoint/slices.h"
#include "worker/train/model/finite.h"

namespace nsa::train {
namespace {

absl::StatusOr<std::filesystem::path> FindCheckpoint(const std::filesystem::path& given) {
  NSA_ASSIGN_OR_RETURN(const NewestGood named, FindNamed(given));
  for (const std::string& problem : named.rejected) spdlog::warn("{}", problem);
  return named.entry.path;
}

// Refuses a spec that no model can be built from, before anything is built: the hashes of a
// checkpoint show that nobody changed it, not that it makes sense.
absl::Status CheckModel(const std::filesystem::path& checkpoint, const v1::JobSpec& spec) {
  if (const absl::Status status = CheckSizes(spec); !status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("state.json: spec: ", status.message()));
  }
  std::error_code error;
  const std::filesystem::path file = checkpoint / kModelFile;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(file, error));
  const int64_t needed = ParameterCount(spec) * static_cast<int64_t>(sizeof(float));
  if (!error && bytes >= needed) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("%s: %d bytes (the model of state.json has %d)",
                                             file.string(), error ? 0 : bytes, needed));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainedModel>> TrainedModel::Load(
    const std::filesystem::path& checkpoint, Backend backend) {
  auto trained = std::unique_ptr<TrainedModel>(new TrainedModel());
  if (backend == Backend::kCuda) {
    NSA_ASSIGN_OR_RETURN(trained->gpu_, Gpu::Open());
  }
  NSA_ASSIGN_OR_RETURN(const std::filesystem::path path, FindCheckpoint(checkpoint));
  NSA_ASSIGN_OR_RETURN(trained->state_, ReadCheckpointState(path));
  const v1::JobSpec& spec = trained->state_.spec();
  NSA_RETURN_IF_ERROR(CheckModel(path, spec));
  trained->vocab_ = VocabOf(spec);
  NSA_ASSIGN_OR_RETURN(trained->tokenizer_, TokenizerOf(spec));
  trained->layout_ = std::make_unique<ParameterLayout>(spec);
  trained->parameters_ = std::make_unique<Arena>(trained->layout_.get());
  RestoreTarget target;
  target.layout = trained->layout_.get();
  target.parameters = trained->parameters_->flat();
  NSA_RETURN_IF_ERROR(LoadCheckpoint(path, "", target).status());
  NSA_RETURN_IF_ERROR(Annotate(CheckFinite(*trained->parameters_), kModelFile));
  if (trained->gpu_ != nullptr) NSA_RETURN_IF_ERROR(trained->MoveToGpu());
  return trained;
}

absl::Status TrainedModel::MoveToGpu() {
  NSA_ASSIGN_OR_RETURN(
      Arena on_gpu,
      Arena::Create(layout_.get(), {.backend = Backend::kCuda, .half = true}, "weights"));
  NSA_RETURN_IF_ERROR(CopyArena(gpu_->exec(), *parameters_, &on_gpu));
  *parameters_ = std::move(on_gpu);
  return absl::OkStatus();
}

Exec TrainedModel::exec() const { return gpu_ == nullptr ? Exec() : gpu_->exec(); }

std::string TrainedModel::device() const { return gpu_ == nullptr ? "CPU" : gpu_->info().name; }

absl::StatusOr<std::unique_ptr<Model>> TrainedModel::MakeModel(int32_t batch,
                                                               int32_t seq_len) const {
  const ModelOptions options{
      .batch = batch, .seq_len = seq_len, .backend = exec().backend, .keep_token_losses = true};
  return Model::Create(spec(), options, parameters_.get());
}

TextModel TrainedModel::text_model() const {
  return {.spec = &spec(),
          .tokenizer = tokenizer_.get(),
          .parameters = parameters_.get(),
          .exec = exec()};
}

absl::StatusOr<std::unique_ptr<Decoder>> TrainedModel::MakeDecoder(int32_t context,
                                                                   int32_t slots) const {
  return text_model().MakeDecoder(context, slots);
}

}  // namespace nsa::train
