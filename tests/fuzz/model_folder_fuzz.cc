// Any bytes as what describes a model on the Hugging Face Hub: config.json, the index of its
// weights, tokenizer_config.json and chat_template.jinja; also the config.json of a known family
// with any values. A model that is accepted is the same one after its config is written and read,
// each of its tensors has a place, and its chat format renders a conversation.
#include <bit>
#include <span>

#include "common/base/json_shape.h"
#include "common/chat/chat_template.h"
#include "common/chat/render.h"
#include "common/export/export.h"
#include "common/export/foreign_model.h"
#include "common/export/model_tensors.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz.h"
#include "tests/worker/train/checkpoint/foreign_folder.h"

using nsa::fuzz::Input;
using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;
using Json = nlohmann::json;

namespace {

constexpr const char* kKeys[] = {"architectures",
                                 "model_type",
                                 "vocab_size",
                                 "hidden_size",
                                 "intermediate_size",
                                 "num_hidden_layers",
                                 "num_attention_heads",
                                 "num_key_value_heads",
                                 "head_dim",
                                 "hidden_act",
                                 "rms_norm_eps",
                                 "max_position_embeddings",
                                 "rope_theta",
                                 "rope_scaling",
                                 "rope_parameters",
                                 "tie_word_embeddings",
                                 "attention_bias",
                                 "sliding_window",
                                 "use_sliding_window",
                                 "max_window_layers",
                                 "layer_types",
                                 "partial_rotary_factor",
                                 "num_experts"};
constexpr const char* kRotationKeys[] = {
    "rope_type",        "type",     "factor",         "original_max_position_embeddings",
    "rope_theta",       "mscale",   "mscale_all_dim", "low_freq_factor",
    "high_freq_factor", "truncate", "beta_fast",      "beta_slow",
    "attention_factor"};

Json Value(Input* input) {
  switch (input->Byte() % 5) {
    case 0:
      return input->Byte();
    case 1:
      return input->Number();
    case 2:
      return std::bit_cast<double>(input->Number());
    case 3:
      return std::string(input->Text());
    default:
      return Json::parse(input->Text(), nullptr, /*allow_exceptions=*/false);
  }
}

void Change(std::span<const char* const> keys, Input* input, Json* object) {
  for (int left = input->Byte() % 8; left > 0; --left) {
    (*object)[keys[input->Byte() % keys.size()]] = Value(input);
  }
}

// The config.json of a small model of one of the families, with other values and another rotation.
std::string FamilyConfig(Input* input) {
  constexpr std::pair<const char*, const char*> kFamilies[] = {
      {"LlamaForCausalLM", "llama"},
      {"Qwen2ForCausalLM", "qwen2"},
      {"Qwen3ForCausalLM", "qwen3"},
      {"MistralForCausalLM", "mistral"},
      {"MinistralForCausalLM", "ministral"}};
  const auto& [architecture, type] = kFamilies[input->Byte() % std::size(kFamilies)];
  Json config = nsa::train::ForeignConfig(architecture, type);
  constexpr const char* kRotations[] = {"default", "linear", "llama3", "yarn"};
  if (const uint8_t rotation = input->Byte() % 5; rotation < std::size(kRotations)) {
    Json scaling = {{"rope_type", kRotations[rotation]},
                    {"factor", 4.0},
                    {"original_max_position_embeddings", 64}};
    Change(kRotationKeys, input, &scaling);
    config["rope_scaling"] = std::move(scaling);
  }
  Change(kKeys, input, &config);
  return config.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The model of the config.json that one was written as.
absl::StatusOr<nsa::v1::JobSpec> SpecOf(const Json& config) {
  if (!nsa::IsForeign(config)) return nsa::SpecOfModelConfig(config);
  auto model = nsa::ReadForeignModel(config);
  if (!model.ok()) return model.status();
  for (const nsa::ModelTensor& tensor : nsa::ModelTensors(model->spec)) {
    Require(tensor.size > 0 && model->sources.contains(tensor.name), tensor.name);
  }
  return std::move(model->spec);
}

void CheckConfig(const Json& config) {
  const auto spec = SpecOf(config);
  RequireRefusal(spec.status());
  if (!spec.ok()) return;
  const auto plain = nsa::AsPlainModel(*spec, /*bf16=*/false, {});
  const Json written = plain ? plain->config : nsa::ModelConfigJson(*spec, /*bf16=*/false, {});
  const auto again = SpecOf(Json::parse(written.dump()));
  Require(again.ok(), again.status().ToString());
  // Of ours a plain model may say the same layers in several ways.
  const bool same_nsa = (plain && !nsa::IsForeign(config)) ||
                        again->nsa().SerializeAsString() == spec->nsa().SerializeAsString();
  Require(same_nsa && again->model().SerializeAsString() == spec->model().SerializeAsString() &&
              again->train().seq_len() == spec->train().seq_len(),
          "another model: " + written.dump());
  Require((plain ? nsa::CheckForeignConfig : nsa::CheckModelConfig)(written, *spec).ok(),
          "a config that is not that of its own model");
}

void CheckChat(const std::filesystem::path& folder) {
  RequireRefusal(nsa::ReadChatTemplate(folder).status());
  const auto format = nsa::ReadChatFormat(folder);
  RequireRefusal(format.status());
  if (!format.ok()) return;
  const nsa::ChatMessage messages[] = {{"user", "a question"}, {"assistant", "the answer"}};
  const auto pieces = nsa::RenderConversation(*format, messages);
  Require(pieces.ok(), pieces.status().ToString());
  std::string answer;
  for (const nsa::ChatPiece& piece : *pieces) {
    Require(!piece.text.empty() || (!piece.control && !piece.answer), "an empty piece");
    if (piece.answer) answer += piece.text;
  }
  Require(answer.find("the answer") != std::string::npos, "a conversation without its answer");
}

// A file of the folder; none where the text is empty.
void Put(const std::string& name, std::string_view text) {
  nsa::fuzz::File(name, text);
  if (text.empty()) std::filesystem::remove(nsa::fuzz::Folder() / name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const bool family = input.Byte() % 2 == 1;
  const std::string text = family ? FamilyConfig(&input) : std::string(input.Text());
  Put("config.json", text);
  Put(nsa::kWeightIndexFile, input.Text());
  Put("tokenizer_config.json", input.Text());
  Put("chat_template.jinja", input.Rest());
  const std::filesystem::path& folder = nsa::fuzz::Folder();
  RequireRefusal(nsa::CheckImport(folder, folder / "checkpoint", {}));
  RequireRefusal(nsa::CheckImport(folder, folder / "checkpoint", {.sparse = nsa::v1::NsaSpec()}));
  const auto files = nsa::WeightFiles(folder);
  RequireRefusal(files.status());
  for (const std::string& name : files.value_or(std::set<std::string>())) {
    Require(name.ends_with(".safetensors") && name.find('/') == std::string::npos, name);
  }
  const Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (config.is_object() && nsa::IsShallow(text)) CheckConfig(config);
  CheckChat(folder);
  return 0;
}
