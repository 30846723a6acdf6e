#include "worker/train/score/text_model.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/job/data/data_files.h"
#include "common/job/data_source.h"

namespace nsa::train {
namespace {

// Refuses a model trained on token files that its job's tokenizer did not write.
absl::Status CheckTokenFiles(const v1::DataSpec& data, int32_t vocab) {
  if (!ReadsOnlyTokens(data)) return absl::OkStatus();
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

absl::StatusOr<std::unique_ptr<TextTokenizer>> TokenizerOf(const v1::JobSpec& spec) {
  const int32_t vocab = VocabOf(spec);
  NSA_RETURN_IF_ERROR(CheckTokenFiles(spec.data(), vocab));
  NSA_ASSIGN_OR_RETURN(std::unique_ptr<TextTokenizer> tokenizer, MakeTokenizer(spec.data()));
  NSA_RETURN_IF_ERROR(CheckTokenizer(*tokenizer, spec.data(), vocab));
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Decoder>> TextModel::MakeDecoder(int32_t context,
                                                                int32_t slots) const {
  DecoderOptions options{.context = context, .slots = slots};
  // A model of conversations has learned to read on behind a separator within one: in training each
  // is a document of its own, whatever tokens it has.
  if (spec->data().document_mask() && !LearnsAnswers(spec->data())) {
    options.separator = tokenizer->separator();
  }
  return Decoder::Create(exec, *spec, parameters, options);
}

}  // namespace nsa::train
