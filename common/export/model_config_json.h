// config.json of an exported model: the sizes and options of its job, under the names of
// configuration_nsa.py.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "nsa/v1/job.pb.h"

namespace nsa {

// Tokens of a tokenizer; −1: not known.
struct SpecialIds {
  int32_t separator = -1;  // begins a document
  int32_t end = -1;        // ends it: the same, unless the tokenizer has another
};

// The first, the last and the padding token of texts, the last one again: for config.json and
// generation_config.json. Empty if they are not known.
nlohmann::ordered_json SpecialTokensJson(const SpecialIds& ids);

// `spec` must have its defaults filled in.
nlohmann::ordered_json ModelConfigJson(const v1::JobSpec& spec, bool bf16, const SpecialIds& ids);

// The job that config.json describes: model, nsa, train.seq_len and data.document_mask, with
// defaults elsewhere. InvalidArgument, naming the key, when one is missing or outside its limits.
absl::StatusOr<v1::JobSpec> SpecOfModelConfig(const nlohmann::json& config);

// FailedPrecondition, naming the first key, when `spec` is not a job of the model that config.json
// describes.
absl::Status CheckModelConfig(const nlohmann::json& config, const v1::JobSpec& spec);

}  // namespace nsa
