#include "common/export/model_config_json.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/estimate/layers.h"
#include "common/estimate/model_options.h"
#include "common/export/config_keys.h"
#include "common/job/load.h"
#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"

namespace nsa {
namespace {

using Json = nlohmann::ordered_json;

// Keys that folders of older versions lack, and what they mean there.
Json Newer() {
  return {{"hidden_act", "silu"},         {"qk_norm", false},  {"mlp", "plain"},
          {"tie_word_embeddings", false}, {"qkv_bias", false}, {"qk_norm_weights", false},
          {"rope_stretch", nullptr}};
}

// The value of `key`, or null if it is missing and has no default.
nlohmann::json ValueOf(const nlohmann::json& config, const std::string& key) {
  if (config.contains(key)) return config[key];
  const Json newer = Newer();
  return newer.contains(key) ? nlohmann::json(newer[key]) : nlohmann::json();
}

// model.rope_scaling under a name of our own: transformers gives the key rope_scaling a meaning.
// null without one.
Json StretchJson(const v1::ModelSpec& model) {
  if (!model.has_rope_scaling()) return nullptr;
  const v1::RopeScaling& scaling = model.rope_scaling();
  Json json = {{"type", scaling.type() == v1::ROPE_SCALING_TYPE_YARN ? "yarn" : "llama3"},
               {"factor", scaling.factor()},
               {"original_seq_len", scaling.original_seq_len()}};
  if (scaling.type() == v1::ROPE_SCALING_TYPE_YARN) {
    json["beta_fast"] = scaling.beta_fast();
    json["beta_slow"] = scaling.beta_slow();
  } else {
    json["low_freq_factor"] = scaling.low_freq_factor();
    json["high_freq_factor"] = scaling.high_freq_factor();
  }
  return json;
}

// The keys that make up the model. Every other key of config.json is for transformers.
Json Architecture(const v1::JobSpec& spec) {
  const v1::ModelSpec& model = spec.model();
  const v1::NsaSpec& nsa = spec.nsa();
  std::vector<std::string> layers;
  for (const LayerAttention& layer : LayersOf(nsa)) layers.push_back(LayerText(layer));
  return {{"vocab_size", VocabOf(spec)},
          {"hidden_size", model.dim()},
          {"num_hidden_layers", model.n_layers()},
          {"num_attention_heads", model.n_heads()},
          {"num_key_value_heads", model.n_kv_groups()},
          {"intermediate_size", MlpUnitsOf(model)},
          {"d_k", model.d_k()},
          {"d_v", model.d_v()},
          {"rope_base", model.rope_base()},
          {"rope_scale", model.rope_scale()},
          {"rope_layers", model.rope_layers() == v1::ROPE_LAYERS_WINDOW ? "window" : "all"},
          {"rms_norm_eps", NormEpsOf(model)},
          {"hidden_act", model.activation() == v1::ACTIVATION_RELU2 ? "relu2" : "silu"},
          {"mlp", IsSwiglu(model) ? "swiglu" : "plain"},
          {"qk_norm", model.qk_norm()},
          {"block_size", nsa.l()},
          {"block_stride", nsa.d()},
          {"selection_size", nsa.l_sel()},
          {"num_selected", nsa.n_sel()},
          {"window", nsa.w()},
          {"phi", nsa.phi() == v1::PHI_MLP ? "mlp" : "avg"},
          {"gate", nsa.gate() == v1::GATE_SIGMOID ? "sigmoid" : "softmax"},
          {"layers", layers},
          {"document_mask", spec.data().document_mask()},
          {"tie_word_embeddings", model.tie_embeddings()},
          {"qkv_bias", model.qkv_bias()},
          {"qk_norm_weights", model.qk_norm_weights()},
          {"rope_stretch", StretchJson(model)}};
}

// Models of earlier versions may have it.
absl::Status CheckNoSoftcap(const ConfigKeys& config) {
  constexpr char kKey[] = "final_logit_softcapping";
  const nlohmann::json& found = config[kKey];
  if (found.is_null() || found == 0) return absl::OkStatus();
  return ConfigKeys{config.json, "import it with the version that wrote it"}.Wrong(
      kKey, "null, because this version has no softcap");
}

absl::Status ReadStretch(const ConfigKeys& config, v1::ModelSpec* model) {
  constexpr char kKey[] = "rope_stretch";
  const nlohmann::json& stretch = config[kKey];
  if (stretch.is_null()) return absl::OkStatus();
  if (!stretch.is_object() || !stretch.contains("type") ||
      (stretch["type"] != "yarn" && stretch["type"] != "llama3")) {
    return config.Wrong(kKey, "null or of type llama3 or yarn");
  }
  v1::RopeScaling* scaling = model->mutable_rope_scaling();
  const bool yarn = stretch["type"] == "yarn";
  scaling->set_type(yarn ? v1::ROPE_SCALING_TYPE_YARN : v1::ROPE_SCALING_TYPE_LLAMA3);
  double factor = 0, low = 0, high = 0;
  int32_t tokens = 0;
  const ConfigKeys keys{stretch};
  NSA_RETURN_IF_ERROR(keys.ReadPositive("factor", 1e6, &factor));
  NSA_RETURN_IF_ERROR(keys.ReadInt("original_seq_len", 1'000'000'000, &tokens));
  NSA_RETURN_IF_ERROR(keys.ReadPositive(yarn ? "beta_slow" : "low_freq_factor", 1e6, &low));
  NSA_RETURN_IF_ERROR(keys.ReadPositive(yarn ? "beta_fast" : "high_freq_factor", 1e6, &high));
  if (factor < 1 || high <= low) {
    return config.Wrong(
        kKey, yarn ? "a factor of at least 1 with beta_fast greater than beta_slow"
                   : "a factor of at least 1 with high_freq_factor greater than low_freq_factor");
  }
  scaling->set_factor(factor);
  scaling->set_original_seq_len(tokens);
  if (yarn) {
    scaling->set_beta_slow(low);
    scaling->set_beta_fast(high);
  } else {
    scaling->set_low_freq_factor(low);
    scaling->set_high_freq_factor(high);
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const ConfigKeys& config, v1::ModelSpec* model) {
  struct Field {
    const char* key;
    int64_t most;
    void (v1::ModelSpec::*set)(int32_t);
  };
  int32_t value = 0;
  for (const Field& field :
       {Field{"vocab_size", 1'000'000, &v1::ModelSpec::set_vocab},
        Field{"hidden_size", 32768, &v1::ModelSpec::set_dim},
        Field{"num_hidden_layers", 512, &v1::ModelSpec::set_n_layers},
        Field{"num_attention_heads", 1 << 20, &v1::ModelSpec::set_n_heads},
        Field{"num_key_value_heads", 1 << 20, &v1::ModelSpec::set_n_kv_groups},
        Field{"d_k", 192, &v1::ModelSpec::set_d_k}, Field{"d_v", 128, &v1::ModelSpec::set_d_v}}) {
    NSA_RETURN_IF_ERROR(config.ReadInt(field.key, field.most, &value));
    (model->*field.set)(value);
  }
  NSA_RETURN_IF_ERROR(config.ReadInt("intermediate_size", kMostMlpUnits, &value));
  if (SetMlpUnits(value, model)) return absl::OkStatus();
  return config.Wrong("intermediate_size",
                      absl::StrCat("a multiple of ", model->dim(), " or of ", kMlpUnitsMultiple));
}

absl::Status ReadNumbers(const ConfigKeys& config, v1::ModelSpec* model) {
  double real = 0;
  NSA_RETURN_IF_ERROR(config.ReadPositive("rope_base", 1e12, &real));
  if (!(real > 1)) return config.Wrong("rope_base", "a number greater than 1");
  model->set_rope_base(real);
  NSA_RETURN_IF_ERROR(config.ReadPositive("rope_scale", 1e6, &real));
  model->set_rope_scale(real);
  if (config.json.contains("rms_norm_eps")) {
    NSA_RETURN_IF_ERROR(config.ReadWithin("rms_norm_eps", kLeastNormEps, kMostNormEps, &real));
    model->set_norm_eps(real);
  }
  return absl::OkStatus();
}

absl::Status ReadFunctions(const ConfigKeys& config, v1::ModelSpec* model) {
  const nlohmann::json activation = ValueOf(config.json, "hidden_act");
  if (activation != "silu" && activation != "relu2") {
    return config.Wrong("hidden_act", "silu or relu2");
  }
  if (activation == "relu2") model->set_activation(v1::ACTIVATION_RELU2);
  const nlohmann::json mlp = ValueOf(config.json, "mlp");
  if (mlp != "plain" && mlp != "swiglu") return config.Wrong("mlp", "plain or swiglu");
  if (mlp == "swiglu") model->set_mlp(v1::MLP_SWIGLU);
  const nlohmann::json rotated = ValueOf(config.json, "rope_layers");
  if (rotated != "all" && rotated != "window") return config.Wrong("rope_layers", "all or window");
  if (rotated == "window") model->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
  struct Switch {
    const char* key;
    void (v1::ModelSpec::*set)(bool);
  };
  for (const Switch& one : {Switch{"qk_norm", &v1::ModelSpec::set_qk_norm},
                            Switch{"qk_norm_weights", &v1::ModelSpec::set_qk_norm_weights},
                            Switch{"qkv_bias", &v1::ModelSpec::set_qkv_bias},
                            Switch{"tie_word_embeddings", &v1::ModelSpec::set_tie_embeddings}}) {
    const nlohmann::json value = ValueOf(config.json, one.key);
    if (!value.is_boolean()) return config.Wrong(one.key, "true or false");
    if (value.get<bool>()) (model->*one.set)(true);
  }
  if (model->qk_norm_weights() && !model->qk_norm()) {
    return config.Wrong("qk_norm_weights", "false, because qk_norm is false");
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const ConfigKeys& config, v1::ModelSpec* model) {
  NSA_RETURN_IF_ERROR(ReadSizes(config, model));
  NSA_RETURN_IF_ERROR(ReadNumbers(config, model));
  NSA_RETURN_IF_ERROR(ReadFunctions(config, model));
  NSA_RETURN_IF_ERROR(ReadStretch(config, model));
  return CheckNoSoftcap(config);
}

absl::Status ReadNsa(const ConfigKeys& config, int n_layers, v1::NsaSpec* nsa) {
  struct Field {
    const char* key;
    int64_t most;
    void (v1::NsaSpec::*set)(int32_t);
  };
  int32_t value = 0;
  for (const Field& field : {Field{"block_size", 128, &v1::NsaSpec::set_l},
                             Field{"block_stride", 128, &v1::NsaSpec::set_d},
                             Field{"selection_size", 256, &v1::NsaSpec::set_l_sel},
                             Field{"num_selected", 64, &v1::NsaSpec::set_n_sel},
                             Field{"window", INT32_MAX, &v1::NsaSpec::set_w}}) {
    NSA_RETURN_IF_ERROR(config.ReadInt(field.key, field.most, &value));
    (nsa->*field.set)(value);
  }
  const nlohmann::json& phi = config["phi"];
  if (phi != "mlp" && phi != "avg") return config.Wrong("phi", "mlp or avg");
  nsa->set_phi(phi == "mlp" ? v1::PHI_MLP : v1::PHI_AVG);
  const nlohmann::json& gate = config["gate"];
  if (gate != "sigmoid" && gate != "softmax") {
    return config.Wrong("gate", "sigmoid or softmax");
  }
  nsa->set_gate(gate == "sigmoid" ? v1::GATE_SIGMOID : v1::GATE_SOFTMAX);
  const nlohmann::json& layers = config["layers"];
  for (const nlohmann::json& branches : layers) {
    if (branches.is_string()) nsa->add_layers(branches.get<std::string>());
  }
  if (!layers.is_array() || nsa->layers().empty() ||
      static_cast<size_t>(nsa->layers_size()) != layers.size() ||
      FindLayersProblem(*nsa, n_layers).has_value()) {
    return config.Wrong("layers",
                        "a list of the layers in turn, each its branches joined by + or full");
  }
  NormalizeLayers(n_layers, nsa);
  return absl::OkStatus();
}

}  // namespace

nlohmann::ordered_json SpecialTokensJson(const SpecialIds& ids) {
  if (ids.separator < 0) return nlohmann::ordered_json::object();
  return {{"bos_token_id", ids.separator}, {"eos_token_id", ids.end}, {"pad_token_id", ids.end}};
}

nlohmann::ordered_json ModelConfigJson(const v1::JobSpec& spec, bool bf16, const SpecialIds& ids) {
  Json config = {{"architectures", {"NsaForCausalLM"}},
                 {"model_type", "nsa"},
                 {"auto_map",
                  {{"AutoConfig", "configuration_nsa.NsaConfig"},
                   {"AutoModelForCausalLM", "modeling_nsa.NsaForCausalLM"}}},
                 {"torch_dtype", bf16 ? "bfloat16" : "float32"}};
  config.update(Architecture(spec));
  config["max_position_embeddings"] = spec.train().seq_len();
  if (ids.separator >= 0) config["separator_token_id"] = ids.separator;
  config.update(SpecialTokensJson(ids));
  return config;
}

absl::StatusOr<v1::JobSpec> SpecOfModelConfig(const nlohmann::json& config) {
  if (!config.is_object() || !config.contains("model_type") || config["model_type"] != "nsa") {
    return absl::InvalidArgumentError(
        "config.json: model_type: not nsa (must be a folder that `nsactl export` wrote); name one");
  }
  v1::JobSpec spec;
  spec.set_name("imported");
  const ConfigKeys keys{config};
  NSA_RETURN_IF_ERROR(ReadModel(keys, spec.mutable_model()));
  NSA_RETURN_IF_ERROR(ReadNsa(keys, spec.model().n_layers(), spec.mutable_nsa()));
  int32_t seq_len = 0;
  NSA_RETURN_IF_ERROR(keys.ReadInt("max_position_embeddings", 1 << 20, &seq_len));
  spec.mutable_train()->set_seq_len(seq_len);
  bool mask = false;
  NSA_RETURN_IF_ERROR(keys.ReadBool("document_mask", &mask));
  spec.mutable_data()->set_document_mask(mask);
  ApplyDefaults(&spec);
  NSA_RETURN_IF_ERROR(Annotate(ShapeOf(spec).Validate(), "config.json"));
  return spec;
}

absl::Status CheckModelConfig(const nlohmann::json& config, const v1::JobSpec& spec) {
  nlohmann::json known(Newer());  // what a key that is missing means
  known.update(config);
  return CheckKeys(known, Architecture(spec));
}

}  // namespace nsa
