// config.json of an exported model: the sizes and options of its job, under the names of
// configuration_nsa.py.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "nsa/v1/job.pb.h"

namespace nsa {

// The first, the last and the padding token of texts, all of them the separator: for config.json
// and generation_config.json.
nlohmann::ordered_json SpecialTokensJson(int32_t separator);

// `spec` must have its defaults filled in. `separator` is the token that begins a document; −1 when
// it is not known.
nlohmann::ordered_json ModelConfigJson(const v1::JobSpec& spec, bool bf16, int32_t separator);

// The job that config.json describes: model, nsa, train.seq_len and data.document_mask, with
// defaults elsewhere. InvalidArgument, naming the key, when one is missing or outside its limits.
absl::StatusOr<v1::JobSpec> SpecOfModelConfig(const nlohmann::json& config);

// FailedPrecondition, naming the first key, when `spec` is not a job of the model that config.json
// describes.
absl::Status CheckModelConfig(const nlohmann::json& config, const v1::JobSpec& spec);

}  // namespace nsa
