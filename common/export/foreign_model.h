// Models of other families: the folders of LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM,
// MistralForCausalLM and MinistralForCausalLM as jobs, and where each of our tensors is in them.
// Pure.
//
// Layers of theirs read all tokens or have a window, the same in all of these, as transformers 5
// reads sliding_window, layer_types, use_sliding_window and max_window_layers.
//
// Their rotation turns columns i and i + dk/2 of a head, ours columns 2i and 2i + 1, so the rows of
// q and k, their biases and the weights of normalized heads are reordered (`heads` below). YaRN's
// factor on the logits, which our rotation does not have, goes into the queries.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/export/model_config_json.h"
#include "nlohmann/json.hpp"
#include "nsa/v1/job.pb.h"

namespace nsa {

// How a tensor of ours is made of one in a folder; on export the reverse.
struct TensorSource {
  std::string name;   // in the folder
  int32_t heads = 0;  // width of the heads whose rows go from halves to pairs; 0: none do
  double factor = 1;  // of every element, where rows are reordered
};

struct ForeignModel {
  // Dense: a window of all tokens; or nsa.layers of win and full. Defaults are filled in.
  v1::JobSpec spec;
  std::map<std::string, TensorSource> sources;  // by the name of our tensor
};

// Whether config.json describes a model of another family than our own.
bool IsForeign(const nlohmann::json& config);

// InvalidArgument, naming the key, when the architecture is none of these or a key has a value
// that our models cannot have.
absl::StatusOr<ForeignModel> ReadForeignModel(const nlohmann::json& config);

// A model of ours as the one of another family that it is.
struct PlainModel {
  std::string architecture;       // LlamaForCausalLM, …
  nlohmann::ordered_json config;  // config.json
  std::map<std::string, TensorSource> sources;
};

// Nothing where the model is none of theirs: it has sparse layers, a plain MLP, a document mask,
// norms of queries and keys without weights, …
std::optional<PlainModel> AsPlainModel(const v1::JobSpec& spec, bool bf16, const SpecialIds& ids);

// FailedPrecondition, naming the first key, when `spec` is not a job of the model that the
// config.json of such a folder describes.
absl::Status CheckForeignConfig(const nlohmann::json& config, const v1::JobSpec& spec);

// Whether a tensor of such a folder, which no tensor of ours is made of, holds nothing that counts:
// frequencies that follow from the configuration, and a head that is the embedding again.
bool IsRedundant(const v1::JobSpec& spec, const std::string& name);

}  // namespace nsa
