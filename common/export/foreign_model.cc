#include "common/export/foreign_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/estimate/layers.h"
#include "common/estimate/model_options.h"
#include "common/export/config_keys.h"
#include "common/export/model_config_json.h"
#include "common/job/load.h"
#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"

namespace nsa {
namespace {

constexpr char kFix[] = "such a model cannot be imported";

// Entries of layer_types.
constexpr char kFullType[] = "full_attention";
constexpr char kSlidingType[] = "sliding_attention";

constexpr int32_t kMostHeadsOfAGroup = 16;  // of NsaShape

// Of families with windows, where config.json lacks sliding_window and max_window_layers.
constexpr int32_t kDefaultWindow = 4096;
constexpr int32_t kDefaultWindowLayers = 28;

// Which layers of a family have a window if layer_types does not say it.
enum class Windows : uint8_t {
  kNone,    // and layer_types cannot
  kIfUsed,  // those from max_window_layers on, if use_sliding_window is true
  kAll,     // unless sliding_window is null
};

struct Family {
  std::string_view architecture;
  std::string_view type;  // model_type
  bool qkv_bias;          // always
  bool head_norm;         // weighted QK-norm
  Windows windows;
};

// A model of ours is the first one that it can be. A Ministral is a Mistral with layer_types:
// transformers reads that so, and more programs know the name.
constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", false, false, Windows::kNone},
    {"Qwen2ForCausalLM", "qwen2", true, false, Windows::kIfUsed},
    {"Qwen3ForCausalLM", "qwen3", false, true, Windows::kIfUsed},
    {"MistralForCausalLM", "mistral", false, false, Windows::kAll},
    {"MinistralForCausalLM", "ministral", false, false, Windows::kAll},
};

// The family, by the architecture or where there is none by the type.
absl::StatusOr<Family> FamilyOf(const ConfigKeys& config) {
  const nlohmann::json& architectures = config["architectures"];
  const bool named = architectures.is_array() && !architectures.empty();
  const char* const key = named ? "architectures" : "model_type";
  const nlohmann::json& word = named ? architectures[0] : config["model_type"];
  std::vector<std::string> known;
  for (const Family& family : kFamilies) {
    const std::string own(named ? family.architecture : family.type);
    if (word == own) return family;
    known.push_back(own);
  }
  return config.Wrong(key, absl::StrCat("one of ", absl::StrJoin(known, ", ")));
}

// A key that changes what is computed has a value under which it changes nothing, or is not there.
absl::Status CheckNeutral(const ConfigKeys& config, const Family& family) {
  struct Neutral {
    const char* key;
    nlohmann::json value;
    const char* wanted;
  };
  // Qwen2's bias of queries, keys and values is not of this key.
  const std::array<Neutral, 8> neutral = {{
      {"hidden_act", "silu", "silu, the only activation of these families here"},
      {"attention_bias", false, "false, because the output projection has no bias here"},
      {"mlp_bias", false, "false, because MLPs have no biases here"},
      {"partial_rotary_factor", 1.0, "1, because whole heads are rotated"},
      {"quantization_config", nullptr,
       "absent, because only weights in fp32, bf16 or fp16 are read"},
      {"attn_logit_softcapping", nullptr, "absent, because scores have no softcap here"},
      {"final_logit_softcapping", nullptr, "absent, because logits have no softcap here"},
      {"num_experts", nullptr, "absent, because there are no experts here"},
  }};
  for (const Neutral& one : neutral) {
    const nlohmann::json& value = config[one.key];
    if (value.is_null() || value == one.value) continue;
    if (family.qkv_bias && std::string_view(one.key) == "attention_bias") continue;
    return config.Wrong(one.key, one.wanted);
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const ConfigKeys& config, v1::ModelSpec* model) {
  int32_t heads = 0, groups = 0, width = 0;
  NSA_RETURN_IF_ERROR(config.ReadInt("num_attention_heads", 1 << 20, &heads));
  groups = heads;
  if (!config["num_key_value_heads"].is_null()) {
    NSA_RETURN_IF_ERROR(config.ReadInt("num_key_value_heads", heads, &groups));
  }
  if (heads % groups != 0 || heads / groups > kMostHeadsOfAGroup) {
    return config.Wrong(
        "num_key_value_heads",
        absl::StrCat("a divisor of num_attention_heads = ", heads, ", with at most ",
                     kMostHeadsOfAGroup, " query heads for each"));
  }
  if (!config["head_dim"].is_null()) {
    NSA_RETURN_IF_ERROR(config.ReadInt("head_dim", 1 << 20, &width));
  } else if (model->dim() % heads != 0) {
    return config.Wrong("num_attention_heads",
                        absl::StrCat("a divisor of hidden_size = ", model->dim(),
                                     ", because there is no head_dim"));
  } else {
    width = model->dim() / heads;
  }
  constexpr std::array kWidths = {16, 32, 64, 128};
  if (std::ranges::find(kWidths, width) == kWidths.end()) {
    return config.Wrong("head_dim", absl::StrCat("16, 32, 64 or 128, not ", width));
  }
  model->set_n_heads(heads);
  model->set_n_kv_groups(groups);
  model->set_d_k(width);
  model->set_d_v(width);
  return absl::OkStatus();
}

absl::Status ReadForeignSizes(const ConfigKeys& config, v1::ModelSpec* model) {
  int32_t value = 0;
  NSA_RETURN_IF_ERROR(config.ReadInt("vocab_size", 1'000'000, &value));
  model->set_vocab(value);
  NSA_RETURN_IF_ERROR(config.ReadInt("hidden_size", 32768, &value));
  model->set_dim(value);
  NSA_RETURN_IF_ERROR(config.ReadInt("num_hidden_layers", 512, &value));
  model->set_n_layers(value);
  NSA_RETURN_IF_ERROR(config.ReadInt("intermediate_size", kMostMlpUnits, &value));
  if (value % kMlpUnitsMultiple != 0 || !SetMlpUnits(value, model)) {
    return config.Wrong("intermediate_size", absl::StrCat("a multiple of ", kMlpUnitsMultiple));
  }
  double eps = kDefaultNormEps;
  if (!config["rms_norm_eps"].is_null()) {
    NSA_RETURN_IF_ERROR(config.ReadWithin("rms_norm_eps", kLeastNormEps, kMostNormEps, &eps));
  }
  model->set_norm_eps(eps);
  bool tied = false;
  if (!config["tie_word_embeddings"].is_null()) {
    NSA_RETURN_IF_ERROR(config.ReadBool("tie_word_embeddings", &tied));
  }
  model->set_tie_embeddings(tied);
  return ReadHeads(config, model);
}

// YaRN's factor on cosines and sines: attention_factor, or what follows from the others.
absl::StatusOr<double> AttentionFactor(const ConfigKeys& scaling, double factor) {
  double value = 0;
  if (!scaling["attention_factor"].is_null()) {
    NSA_RETURN_IF_ERROR(scaling.ReadPositive("attention_factor", 1e6, &value));
    return value;
  }
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1; };
  if (scaling["mscale"].is_null() || scaling["mscale_all_dim"].is_null()) return scale(1);
  double of_all = 0;
  NSA_RETURN_IF_ERROR(scaling.ReadPositive("mscale", 1e6, &value));
  NSA_RETURN_IF_ERROR(scaling.ReadPositive("mscale_all_dim", 1e6, &of_all));
  return scale(value) / scale(of_all);
}

// A number above 0, or `otherwise` if the key is missing.
absl::StatusOr<double> PositiveOr(const ConfigKeys& config, const char* key, double otherwise) {
  double value = otherwise;
  if (!config[key].is_null()) NSA_RETURN_IF_ERROR(config.ReadPositive(key, 1e6, &value));
  return value;
}

absl::Status ReadForeignStretch(const ConfigKeys& scaling, bool yarn, double factor,
                                int32_t most_tokens, v1::ModelSpec* model) {
  int32_t tokens = most_tokens;
  if (!yarn || !scaling["original_max_position_embeddings"].is_null()) {
    NSA_RETURN_IF_ERROR(
        scaling.ReadInt("original_max_position_embeddings", 1'000'000'000, &tokens));
  }
  const char* const low_key = yarn ? "beta_slow" : "low_freq_factor";
  const char* const high_key = yarn ? "beta_fast" : "high_freq_factor";
  NSA_ASSIGN_OR_RETURN(const double low, PositiveOr(scaling, low_key, 1));
  NSA_ASSIGN_OR_RETURN(const double high, PositiveOr(scaling, high_key, yarn ? 32 : 4));
  if (!(high > low)) return scaling.Wrong(high_key, absl::StrCat("greater than ", low_key));
  if (factor < 1) return scaling.Wrong("factor", "at least 1");
  v1::RopeScaling* const to = model->mutable_rope_scaling();
  to->set_type(yarn ? v1::ROPE_SCALING_TYPE_YARN : v1::ROPE_SCALING_TYPE_LLAMA3);
  to->set_factor(factor);
  to->set_original_seq_len(tokens);
  if (yarn) {
    to->set_beta_slow(low);
    to->set_beta_fast(high);
  } else {
    to->set_low_freq_factor(low);
    to->set_high_freq_factor(high);
  }
  return absl::OkStatus();
}

// Reads rope_scaling, or in newer folders rope_parameters, which then also has rope_theta. Returns
// YaRN's factor on cosines and sines, else 1.
absl::StatusOr<double> ReadRotation(const ConfigKeys& config, int32_t most_tokens,
                                    v1::ModelSpec* model) {
  const char* const key = config["rope_parameters"].is_null() ? "rope_scaling" : "rope_parameters";
  const nlohmann::json& found = config[key];
  if (!found.is_null() && !found.is_object()) return config.Wrong(key, "an object or null");
  const nlohmann::json empty = nlohmann::json::object();
  const ConfigKeys scaling{found.is_null() ? empty : found, config.fix};
  for (const char* const type : {kFullType, kSlidingType}) {
    if (!scaling[type].is_null()) return config.Wrong(key, "one rotation for all layers");
  }
  const ConfigKeys& base = scaling["rope_theta"].is_null() ? config : scaling;
  double theta = 10000;
  if (!base["rope_theta"].is_null()) {
    NSA_RETURN_IF_ERROR(base.ReadPositive("rope_theta", 1e12, &theta));
  }
  if (!(theta > 1)) return base.Wrong("rope_theta", "a number greater than 1");
  model->set_rope_base(theta);
  const char* const type_key = scaling["rope_type"].is_null() ? "type" : "rope_type";
  const nlohmann::json& type = scaling[type_key];
  if (type.is_null() || type == "default") return 1.0;
  if (type != "linear" && type != "llama3" && type != "yarn") {
    return scaling.Wrong(type_key, "default, linear, llama3 or yarn");
  }
  double factor = 0;
  NSA_RETURN_IF_ERROR(scaling.ReadPositive("factor", 1e6, &factor));
  if (type == "linear") {
    model->set_rope_scale(factor);
    return 1.0;
  }
  const bool yarn = type == "yarn";
  if (yarn && scaling["truncate"] == false) return scaling.Wrong("truncate", "true or absent");
  NSA_RETURN_IF_ERROR(ReadForeignStretch(scaling, yarn, factor, most_tokens, model));
  return yarn ? AttentionFactor(scaling, factor) : 1.0;
}

// layer_types, one for each layer: whether it has a window.
absl::StatusOr<std::vector<bool>> ReadLayerTypes(const ConfigKeys& config, int32_t layers) {
  const nlohmann::json& types = config["layer_types"];
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers) {
    return config.Wrong("layer_types",
                        absl::StrCat("a list with an entry for each of the ", layers, " layers"));
  }
  std::vector<bool> slide;
  for (const nlohmann::json& type : types) {
    if (type != kFullType && type != kSlidingType) {
      return config.Wrong("layer_types",
                          absl::StrCat("a list of ", kFullType, " and ", kSlidingType, ", without ",
                                       CutText(type.dump(), 50)));
    }
    slide.push_back(type == kSlidingType);
  }
  return slide;
}

// Whether each layer has a window, as transformers reads it.
absl::StatusOr<std::vector<bool>> SlidingLayers(const ConfigKeys& config, const Family& family,
                                                int32_t layers) {
  bool used = family.windows == Windows::kAll;
  const bool asked = family.windows == Windows::kIfUsed && !config["use_sliding_window"].is_null();
  if (asked) NSA_RETURN_IF_ERROR(config.ReadBool("use_sliding_window", &used));
  std::vector<bool> slide(layers);
  if (!config["layer_types"].is_null()) {
    NSA_ASSIGN_OR_RETURN(slide, ReadLayerTypes(config, layers));
    if (used || std::count(slide.begin(), slide.end(), true) == 0) return slide;
    if (family.windows == Windows::kNone) {
      return config.Wrong("layer_types", absl::StrCat(kFullType, " in each layer of a ",
                                                      std::string(family.architecture)));
    }
    return config.Wrong("use_sliding_window",
                        absl::StrCat("true, because layer_types has ", kSlidingType));
  }
  const bool has_window =
      !config.json.contains("sliding_window") || !config["sliding_window"].is_null();
  if (!used || !has_window) return slide;
  int64_t first = 0;
  if (family.windows == Windows::kIfUsed) {
    const nlohmann::json& found = config["max_window_layers"];
    if (!found.is_null() && (!found.is_number_integer() || found.get<int64_t>() < 0)) {
      return config.Wrong("max_window_layers", "a whole number, 0 or more");
    }
    first = found.is_null() ? kDefaultWindowLayers : found.get<int64_t>();
  }
  std::fill(slide.begin() + std::min<int64_t>(first, layers), slide.end(), true);
  return slide;
}

// Layers with a window of sliding_window, and full ones. A window of all tokens is no other than
// none: then all layers have that.
absl::Status ReadWindows(const ConfigKeys& config, const Family& family, v1::JobSpec* spec) {
  const int32_t layers = spec->model().n_layers(), most_tokens = spec->train().seq_len();
  NSA_ASSIGN_OR_RETURN(const std::vector<bool> slide, SlidingLayers(config, family, layers));
  int32_t window = most_tokens;
  if (std::count(slide.begin(), slide.end(), true) > 0) {
    window = kDefaultWindow;
    if (config.json.contains("sliding_window")) {
      NSA_RETURN_IF_ERROR(config.ReadInt("sliding_window", INT32_MAX, &window));
    }
    window = std::min(window, most_tokens);
  }
  std::vector<LayerAttention> attention(layers);
  for (int32_t layer = 0; layer < layers; ++layer) {
    attention[layer].branches[kWin] = true;
    attention[layer].full = window < most_tokens && !slide[layer];
  }
  v1::NsaSpec& nsa = *spec->mutable_nsa();
  nsa.set_w(window);
  SetLayers(std::move(attention), &nsa);
  NormalizeLayers(layers, &nsa);
  return absl::OkStatus();
}

// Lists where our tensors are.
std::map<std::string, TensorSource> SourcesOf(const v1::ModelSpec& model, double q_factor) {
  std::map<std::string, TensorSource> sources;
  sources["embed.weight"] = {"model.embed_tokens.weight"};
  sources["norm_f.weight"] = {"model.norm.weight"};
  if (!model.tie_embeddings()) sources["lm_head.weight"] = {"lm_head.weight"};
  for (int layer = 0; layer < model.n_layers(); ++layer) {
    const auto add = [&](const char* ours, const char* theirs, int32_t heads = 0,
                         double factor = 1) {
      sources[absl::StrCat("blocks.", layer, ".", ours)] = {
          absl::StrCat("model.layers.", layer, ".", theirs), heads, factor};
    };
    // Behind a norm of its own only that norm's weight scales a query.
    const double projected = model.qk_norm() ? 1 : q_factor;
    add("norm1.weight", "input_layernorm.weight");
    add("attn.W_Q.weight", "self_attn.q_proj.weight", model.d_k(), projected);
    add("attn.W_K_win.weight", "self_attn.k_proj.weight", model.d_k());
    add("attn.W_V_win.weight", "self_attn.v_proj.weight");
    add("attn.out.weight", "self_attn.o_proj.weight");
    if (model.qkv_bias()) {
      add("attn.W_Q.bias", "self_attn.q_proj.bias", model.d_k(), projected);
      add("attn.W_K_win.bias", "self_attn.k_proj.bias", model.d_k());
      add("attn.W_V_win.bias", "self_attn.v_proj.bias");
    }
    if (model.qk_norm()) {
      add("attn.q_norm.weight", "self_attn.q_norm.weight", model.d_k(), q_factor);
      add("attn.k_norm.weight", "self_attn.k_norm.weight", model.d_k());
    }
    add("norm2.weight", "post_attention_layernorm.weight");
    add("mlp.gate.weight", "mlp.gate_proj.weight");
    add("mlp.fc1.weight", "mlp.up_proj.weight");
    add("mlp.fc2.weight", "mlp.down_proj.weight");
  }
  return sources;
}

// Whether each layer of a model of ours has a window; the others are dense. Nothing if one has
// another branch.
std::optional<std::vector<bool>> SlidingLayers(const v1::JobSpec& spec) {
  const std::vector<LayerAttention> turns = LayersOf(spec.nsa());
  std::vector<bool> slide;
  for (int32_t layer = 0; layer < spec.model().n_layers(); ++layer) {
    const LayerAttention& attention = turns[layer % turns.size()];
    if (!attention.branches[kWin] || CountOf(attention.branches) != 1) return std::nullopt;
    slide.push_back(!IsDense(attention, spec));
  }
  return slide;
}

// The family of a model of ours; null if there is none.
const Family* FamilyOf(const v1::JobSpec& spec) {
  const v1::ModelSpec& model = spec.model();
  const std::optional<std::vector<bool>> slide = SlidingLayers(spec);
  const bool same_functions = IsSwiglu(model) && model.activation() != v1::ACTIVATION_RELU2 &&
                              !spec.data().document_mask() &&
                              model.qk_norm() == model.qk_norm_weights();
  const bool all_rotate = model.rope_layers() != v1::ROPE_LAYERS_WINDOW ||
                          std::ranges::none_of(LayersOf(spec.nsa()), &LayerAttention::full);
  const bool same_rotation = all_rotate && (model.rope_scale() == 1 ||
                                            (model.rope_scale() > 1 && !model.has_rope_scaling()));
  if (!slide.has_value() || !same_functions || !same_rotation || model.d_k() != model.d_v()) {
    return nullptr;
  }
  const bool windows = std::count(slide->begin(), slide->end(), true) > 0;
  for (const Family& family : kFamilies) {
    if (family.qkv_bias != model.qkv_bias() || family.head_norm != model.qk_norm()) continue;
    if (windows && family.windows == Windows::kNone) continue;
    // Qwen2 derives the width of a head.
    if (family.qkv_bias && model.n_heads() * model.d_k() != model.dim()) continue;
    return &family;
  }
  return nullptr;
}

nlohmann::ordered_json ScalingJson(const v1::ModelSpec& model) {
  if (model.rope_scale() != 1) return {{"rope_type", "linear"}, {"factor", model.rope_scale()}};
  if (!model.has_rope_scaling()) return nullptr;
  const v1::RopeScaling& scaling = model.rope_scaling();
  const bool yarn = scaling.type() == v1::ROPE_SCALING_TYPE_YARN;
  nlohmann::ordered_json json = {{"rope_type", yarn ? "yarn" : "llama3"},
                                 {"factor", scaling.factor()},
                                 {"original_max_position_embeddings", scaling.original_seq_len()}};
  if (yarn) {
    json["beta_fast"] = scaling.beta_fast();
    json["beta_slow"] = scaling.beta_slow();
    json["attention_factor"] = 1.0;  // the queries have it
  } else {
    json["low_freq_factor"] = scaling.low_freq_factor();
    json["high_freq_factor"] = scaling.high_freq_factor();
  }
  return json;
}

// Adds which layers have a window. layer_types stands only where the other keys cannot say it.
void AddWindows(const v1::JobSpec& spec, const Family& family, nlohmann::ordered_json* config) {
  const std::vector<bool> slide = SlidingLayers(spec).value();
  const auto first = std::find(slide.begin(), slide.end(), true);
  const bool used = first != slide.end();
  (*config)["sliding_window"] = nullptr;
  if (used) (*config)["sliding_window"] = spec.nsa().w();
  if (family.windows == Windows::kIfUsed) {
    (*config)["use_sliding_window"] = used;
    (*config)["max_window_layers"] = used ? first - slide.begin() : 0;
  }
  const auto rest = family.windows == Windows::kIfUsed ? first : slide.begin();
  if (!used || std::find(rest, slide.end(), false) == slide.end()) return;
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (const bool slides : slide) types.push_back(slides ? kSlidingType : kFullType);
  (*config)["layer_types"] = std::move(types);
  // Beside layer_types a Qwen3 of some versions of transformers 5 has no other rotation.
  nlohmann::ordered_json rotation = ScalingJson(spec.model());
  if (rotation.is_null()) rotation = {{"rope_type", "default"}};
  rotation["rope_theta"] = spec.model().rope_base();
  (*config)["rope_parameters"] = std::move(rotation);
}

nlohmann::ordered_json PlainConfig(const v1::JobSpec& spec, const Family& family) {
  const v1::ModelSpec& model = spec.model();
  nlohmann::ordered_json config = {{"architectures", {std::string(family.architecture)}},
                                   {"model_type", std::string(family.type)},
                                   {"vocab_size", VocabOf(spec)},
                                   {"hidden_size", model.dim()},
                                   {"intermediate_size", MlpUnitsOf(model)},
                                   {"num_hidden_layers", model.n_layers()},
                                   {"num_attention_heads", model.n_heads()},
                                   {"num_key_value_heads", model.n_kv_groups()},
                                   {"head_dim", model.d_k()},
                                   {"hidden_act", "silu"},
                                   {"max_position_embeddings", spec.train().seq_len()},
                                   {"rms_norm_eps", NormEpsOf(model)},
                                   {"rope_theta", model.rope_base()},
                                   {"rope_scaling", ScalingJson(model)},
                                   {"tie_word_embeddings", model.tie_embeddings()},
                                   {"use_cache", true}};
  AddWindows(spec, family, &config);
  return config;
}

}  // namespace

bool IsForeign(const nlohmann::json& config) {
  return config.is_object() && (!config.contains("model_type") || config["model_type"] != "nsa");
}

absl::StatusOr<ForeignModel> ReadForeignModel(const nlohmann::json& json) {
  const ConfigKeys config{json, kFix};
  NSA_ASSIGN_OR_RETURN(const Family family, FamilyOf(config));
  NSA_RETURN_IF_ERROR(CheckNeutral(config, family));
  ForeignModel result;
  v1::JobSpec& spec = result.spec;
  spec.set_name("imported");
  v1::ModelSpec& model = *spec.mutable_model();
  NSA_RETURN_IF_ERROR(ReadForeignSizes(config, &model));
  model.set_mlp(v1::MLP_SWIGLU);
  if (family.qkv_bias) model.set_qkv_bias(true);
  if (family.head_norm) {
    model.set_qk_norm(true);
    model.set_qk_norm_weights(true);
  }
  int32_t tokens = 0;
  NSA_RETURN_IF_ERROR(config.ReadInt("max_position_embeddings", 1 << 20, &tokens));
  spec.mutable_train()->set_seq_len(tokens);
  NSA_ASSIGN_OR_RETURN(const double attention, ReadRotation(config, tokens, &model));
  NSA_RETURN_IF_ERROR(ReadWindows(config, family, &spec));
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_BPE);
  ApplyDefaults(&spec);
  NSA_RETURN_IF_ERROR(Annotate(ShapeOf(spec).Validate(), "config.json"));
  // Both a query and its key are multiplied by the factor.
  result.sources = SourcesOf(model, attention * attention);
  return result;
}

std::optional<PlainModel> AsPlainModel(const v1::JobSpec& spec, bool bf16, const SpecialIds& ids) {
  const Family* const family = FamilyOf(spec);
  if (family == nullptr) return std::nullopt;
  PlainModel plain = {.architecture = std::string(family->architecture),
                      .config = PlainConfig(spec, *family),
                      .sources = SourcesOf(spec.model(), 1)};
  plain.config["torch_dtype"] = bf16 ? "bfloat16" : "float32";
  plain.config.update(SpecialTokensJson(ids));
  return plain;
}

absl::Status CheckForeignConfig(const nlohmann::json& config, const v1::JobSpec& spec) {
  const Family* const family = FamilyOf(spec);
  const nlohmann::ordered_json wanted = family == nullptr
                                            ? nlohmann::ordered_json{{"model_type", "nsa"}}
                                            : PlainConfig(spec, *family);
  return CheckKeys(config, wanted);
}

bool IsRedundant(const v1::JobSpec& spec, const std::string& name) {
  if (name == "lm_head.weight") return spec.model().tie_embeddings();
  return absl::EndsWith(name, ".rotary_emb.inv_freq");
}

}  // namespace nsa
