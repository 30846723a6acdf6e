// Random models of other families in their own format, and what they compute: the equations of
// LlamaForCausalLM and its relatives in plain loops in fp64, written from their documentation and
// sharing no code with the trainer.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/safetensors_file.h"
#include "nlohmann/json.hpp"

namespace nsa::train {

struct ForeignTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// Small sizes of a model: hidden 32, 2 layers, 4 heads of 16 with 2 key/value heads, 80 units.
inline nlohmann::json ForeignConfig(const std::string& architecture, const std::string& type) {
  return {{"architectures", {architecture}},
          {"model_type", type},
          {"vocab_size", 61},
          {"hidden_size", 32},
          {"intermediate_size", 80},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 40},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"torch_dtype", "float32"}};
}

class ForeignFolder {
 public:
  explicit ForeignFolder(nlohmann::json config, uint32_t seed = 1) : config_(std::move(config)) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0.0f, 0.25f);
    const int64_t dim = Int("hidden_size"), units = Int("intermediate_size"),
                  vocab = Int("vocab_size"), width = Int("head_dim"),
                  q = Int("num_attention_heads") * width, k = Int("num_key_value_heads") * width;
    const auto add = [&](const std::string& name, std::vector<int64_t> shape, float mean = 0) {
      ForeignTensor tensor{std::move(shape), {}};
      int64_t size = 1;
      for (const int64_t length : tensor.shape) size *= length;
      // fp16 and bf16 have these numbers too: eight bits of mantissa, no tiny ones.
      for (int64_t i = 0; i < size; ++i) {
        tensor.values.push_back(std::round((mean + normal(engine)) * 64) / 64);
      }
      tensors_[name] = std::move(tensor);
    };
    add("model.embed_tokens.weight", {vocab, dim});
    add("model.norm.weight", {dim}, 1);
    if (!config_["tie_word_embeddings"].get<bool>()) add("lm_head.weight", {vocab, dim});
    for (int64_t layer = 0; layer < Int("num_hidden_layers"); ++layer) {
      const std::string at = "model.layers." + std::to_string(layer) + ".";
      add(at + "input_layernorm.weight", {dim}, 1);
      add(at + "post_attention_layernorm.weight", {dim}, 1);
      add(at + "self_attn.q_proj.weight", {q, dim});
      add(at + "self_attn.k_proj.weight", {k, dim});
      add(at + "self_attn.v_proj.weight", {k, dim});
      add(at + "self_attn.o_proj.weight", {dim, q});
      if (Type() == "qwen2") {
        add(at + "self_attn.q_proj.bias", {q});
        add(at + "self_attn.k_proj.bias", {k});
        add(at + "self_attn.v_proj.bias", {k});
      }
      if (Type() == "qwen3") {
        add(at + "self_attn.q_norm.weight", {width}, 1);
        add(at + "self_attn.k_norm.weight", {width}, 1);
      }
      add(at + "mlp.gate_proj.weight", {units, dim});
      add(at + "mlp.up_proj.weight", {units, dim});
      add(at + "mlp.down_proj.weight", {dim, units});
    }
  }

  nlohmann::json& config() { return config_; }
  std::map<std::string, ForeignTensor>& tensors() { return tensors_; }
  const std::map<std::string, ForeignTensor>& tensors() const { return tensors_; }

  // Writes config.json and the tensors, in one file, or in `shards` with an index.
  void Write(const std::filesystem::path& folder, TensorType type = TensorType::kF32,
             int shards = 1) const {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << config_.dump();
    std::vector<std::map<std::string, ForeignTensor>> files(shards);
    size_t next = 0;
    for (const auto& [name, tensor] : tensors_) files[next++ % files.size()][name] = tensor;
    nlohmann::json index;
    for (int i = 0; i < shards; ++i) {
      const std::string name = shards == 1 ? "model.safetensors"
                                           : "model-0000" + std::to_string(i + 1) + "-of-0000" +
                                                 std::to_string(shards) + ".safetensors";
      WriteFile(folder / name, files[i], type);
      for (const auto& [tensor, unused] : files[i]) index["weight_map"][tensor] = name;
    }
    if (shards > 1) std::ofstream(folder / "model.safetensors.index.json") << index.dump();
  }

  // Logits [tokens][V] of a text.
  std::vector<std::vector<double>> Logits(const std::vector<int32_t>& text) const {
    Rows x;
    for (const int32_t token : text) x.push_back(RowOf("model.embed_tokens.weight", token));
    for (int64_t layer = 0; layer < Int("num_hidden_layers"); ++layer) Layer(layer, &x);
    const bool tied = config_["tie_word_embeddings"].get<bool>();
    return Linear(Normalized(x, "model.norm.weight"), tied ? "model.embed_tokens" : "lm_head");
  }

 private:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  int64_t Int(const char* key) const { return config_.at(key).get<int64_t>(); }
  std::string Type() const { return config_.at("model_type").get<std::string>(); }

  Row RowOf(const std::string& name, int64_t row) const {
    const ForeignTensor& tensor = tensors_.at(name);
    const int64_t width = tensor.shape.back();
    const auto begin = tensor.values.begin() + row * width;
    return {begin, begin + width};
  }

  // x / √(mean(x²) + eps) · weight
  Row Normalized(const Row& x, const std::string& weight) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double r = 1 / std::sqrt(squares / static_cast<double>(x.size()) +
                                   config_["rms_norm_eps"].get<double>());
    Row y = x;
    for (size_t i = 0; i < y.size(); ++i) y[i] *= r * tensors_.at(weight).values[i];
    return y;
  }
  Rows Normalized(const Rows& x, const std::string& weight) const {
    Rows y;
    for (const Row& row : x) y.push_back(Normalized(row, weight));
    return y;
  }

  // x Wᵀ + b, if there is a bias.
  Rows Linear(const Rows& x, const std::string& name) const {
    const ForeignTensor& w = tensors_.at(name + ".weight");
    const auto bias = tensors_.find(name + ".bias");
    const int64_t out = w.shape[0], in = w.shape[1];
    Rows y(x.size(), Row(out));
    for (size_t r = 0; r < x.size(); ++r) {
      for (int64_t o = 0; o < out; ++o) {
        double sum = bias == tensors_.end() ? 0 : bias->second.values[o];
        for (int64_t i = 0; i < in; ++i) sum += x[r][i] * w.values[o * in + i];
        y[r][o] = sum;
      }
    }
    return y;
  }

  const nlohmann::json& Scaling() const {
    static const nlohmann::json none = nlohmann::json::object();
    if (config_.contains("rope_parameters")) return config_["rope_parameters"];
    if (!config_.contains("rope_scaling") || config_["rope_scaling"].is_null()) return none;
    return config_["rope_scaling"];
  }

  // The inverse frequency of pair i, as the families' code has it.
  double Frequency(int64_t i) const {
    const double width = static_cast<double>(Int("head_dim"));
    const nlohmann::json& scaling = Scaling();
    const double theta = scaling.contains("rope_theta") ? scaling["rope_theta"].get<double>()
                                                        : config_["rope_theta"].get<double>();
    const double plain = 1 / std::pow(theta, 2.0 * static_cast<double>(i) / width);
    const std::string type = scaling.value("rope_type", scaling.value("type", "default"));
    if (type == "default") return plain;
    const double factor = scaling["factor"];
    if (type == "linear") return plain / factor;
    const double original = scaling["original_max_position_embeddings"];
    if (type == "llama3") {
      const double low = scaling["low_freq_factor"], high = scaling["high_freq_factor"];
      const double wavelength = 2 * M_PI / plain;
      if (wavelength < original / high) return plain;
      if (wavelength > original / low) return plain / factor;
      const double smooth = (original / wavelength - low) / (high - low);
      return (1 - smooth) * plain / factor + smooth * plain;
    }
    const auto dimension = [&](double turns) {
      return width * std::log(original / (turns * 2 * M_PI)) / (2 * std::log(theta));
    };
    const double low = std::max(std::floor(dimension(scaling.value("beta_fast", 32.0))), 0.0);
    double high = std::min(std::ceil(dimension(scaling.value("beta_slow", 1.0))), width - 1);
    if (low == high) high += 0.001;
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    return plain / factor * ramp + plain * (1 - ramp);
  }

  double AttentionFactor() const {
    const nlohmann::json& scaling = Scaling();
    if (scaling.value("rope_type", "default") != "yarn") return 1;
    if (scaling.contains("attention_factor")) return scaling["attention_factor"];
    return 0.1 * std::log(scaling["factor"].get<double>()) + 1;
  }

  // Turns columns i and i + width/2 of every head, with rotate_half of the families' code.
  void Rotate(Rows* x) const {
    const int64_t width = Int("head_dim"), half = width / 2;
    for (size_t t = 0; t < x->size(); ++t) {
      Row& row = (*x)[t];
      for (size_t head = 0; head < row.size(); head += width) {
        for (int64_t i = 0; i < half; ++i) {
          const double angle = static_cast<double>(t) * Frequency(i);
          const double c = std::cos(angle) * AttentionFactor(),
                       s = std::sin(angle) * AttentionFactor();
          const double a = row[head + i], b = row[head + half + i];
          row[head + i] = a * c - b * s;
          row[head + half + i] = b * c + a * s;
        }
      }
    }
  }

  void NormalizeHeads(const std::string& weight, Rows* x) const {
    if (!tensors_.contains(weight)) return;
    const int64_t width = Int("head_dim");
    for (Row& row : *x) {
      for (size_t head = 0; head < row.size(); head += width) {
        const auto begin = row.begin() + static_cast<int64_t>(head);
        const Row turned = Normalized(Row(begin, begin + width), weight);
        std::copy(turned.begin(), turned.end(), begin);
      }
    }
  }

  // Keys that a query of a layer sees: its own, and those before it, at most a window.
  int64_t Window(int64_t layer) const {
    if (!config_.contains("sliding_window") || config_["sliding_window"].is_null()) return 1 << 30;
    const bool qwen = Type().starts_with("qwen");
    bool slides = !qwen || (config_.value("use_sliding_window", false) &&
                            layer >= config_.value("max_window_layers", 28));
    if (config_.contains("layer_types")) {
      slides = config_["layer_types"][layer] == "sliding_attention";
    }
    return slides ? Int("sliding_window") : 1 << 30;
  }

  Rows Attention(const Rows& h, const std::string& at, int64_t window) const {
    Rows q = Linear(h, at + "q_proj"), k = Linear(h, at + "k_proj");
    const Rows v = Linear(h, at + "v_proj");
    NormalizeHeads(at + "q_norm.weight", &q);
    NormalizeHeads(at + "k_norm.weight", &k);
    Rotate(&q);
    Rotate(&k);
    const int64_t heads = Int("num_attention_heads"), width = Int("head_dim"),
                  shared = heads / Int("num_key_value_heads");
    Rows o(h.size(), Row(heads * width));
    for (int64_t t = 0; t < std::ssize(h); ++t) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t of_q = head * width, of_k = head / shared * width;
        const int64_t first = std::max<int64_t>(0, t - window + 1);
        std::vector<double> p;
        double sum = 0;
        for (int64_t j = first; j <= t; ++j) {
          double score = 0;
          for (int64_t i = 0; i < width; ++i) score += q[t][of_q + i] * k[j][of_k + i];
          p.push_back(std::exp(score / std::sqrt(static_cast<double>(width))));
          sum += p.back();
        }
        for (int64_t j = first; j <= t; ++j) {
          for (int64_t i = 0; i < width; ++i) {
            o[t][of_q + i] += p[j - first] / sum * v[j][of_k + i];
          }
        }
      }
    }
    return Linear(o, at + "o_proj");
  }

  void Layer(int64_t layer, Rows* x) const {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const auto add = [x](const Rows& y) {
      for (size_t t = 0; t < y.size(); ++t) {
        for (size_t i = 0; i < y[t].size(); ++i) (*x)[t][i] += y[t][i];
      }
    };
    add(Attention(Normalized(*x, at + "input_layernorm.weight"), at + "self_attn.", Window(layer)));
    const Rows h = Normalized(*x, at + "post_attention_layernorm.weight");
    Rows gate = Linear(h, at + "mlp.gate_proj");
    const Rows up = Linear(h, at + "mlp.up_proj");
    for (size_t t = 0; t < gate.size(); ++t) {
      for (size_t i = 0; i < gate[t].size(); ++i) {
        gate[t][i] = gate[t][i] / (1 + std::exp(-gate[t][i])) * up[t][i];
      }
    }
    add(Linear(gate, at + "mlp.down_proj"));
  }

  // The bits of a number that the type has exactly.
  static uint16_t Narrow(float value, TensorType type) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (type == TensorType::kBf16) return static_cast<uint16_t>(bits >> 16);
    if (value == 0) return static_cast<uint16_t>(bits >> 16);
    const uint32_t exponent = (bits >> 23 & 0xff) - 127 + 15;
    return static_cast<uint16_t>((bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3ff));
  }

  static void WriteFile(const std::filesystem::path& path,
                        const std::map<std::string, ForeignTensor>& tensors, TensorType type) {
    std::vector<TensorHeader> headers;
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      headers.push_back({name, tensor.shape, static_cast<int64_t>(tensor.values.size())});
      for (const float value : tensor.values) {
        const uint16_t narrow = Narrow(value, type);
        if (type == TensorType::kF32) {
          data.append(reinterpret_cast<const char*>(&value), sizeof(value));
        } else {
          data.append(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
        }
      }
    }
    std::ofstream(path, std::ios::binary) << SafetensorsHeader(headers, type, {}) << data;
  }

  nlohmann::json config_;
  std::map<std::string, ForeignTensor> tensors_;
};

}  // namespace nsa::train
