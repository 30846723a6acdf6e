#include "worker/train/model/parameters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/estimate/memory/logits.h"
#include "kernels/cuda/device.h"
#include "kernels/dtype.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "kernels/nsa/layer/projections.h"
#include "worker/train/model/model_config.h"

namespace nsa::train {
namespace {

// Philox4x32-10 (Salmon et al., SC 2011): four random words as a pure function of key and counter.
std::array<uint32_t, 4> Philox(uint64_t key, uint64_t counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                               0, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// FNV-1a hash. A tensor's random stream depends on its name, not on its offset.
uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// A number in (0, 1).
double Uniform(uint32_t word) { return (word + 0.5) * 0x1p-32; }

// Elements 4·group … 4·group+3 of a random stream.
std::array<float, 4> Draw(Init init, float scale, uint64_t key, int64_t group) {
  const std::array<uint32_t, 4> words = Philox(key, static_cast<uint64_t>(group));
  std::array<float, 4> values;
  for (int i = 0; i < 4; i += 2) {
    const double u0 = Uniform(words[i]), u1 = Uniform(words[i + 1]);
    if (init == Init::kNormal) {  // Box–Muller
      const double radius = std::sqrt(-2.0 * std::log(u0));
      const double angle = 2.0 * std::numbers::pi * u1;
      values[i] = static_cast<float>(scale * radius * std::cos(angle));
      values[i + 1] = static_cast<float>(scale * radius * std::sin(angle));
    } else {
      values[i] = static_cast<float>(scale * (2.0 * u0 - 1.0));
      values[i + 1] = static_cast<float>(scale * (2.0 * u1 - 1.0));
    }
  }
  return values;
}

// values ← elements `range` of the tensor, counted from its first.
void Fill(const ParameterInfo& tensor, int64_t seed, const Slice& range, std::span<float> values) {
  if (tensor.init == Init::kZeros || tensor.init == Init::kOnes) {
    for (float& value : values) value = tensor.init == Init::kOnes ? 1.0f : 0.0f;
    return;
  }
  const uint64_t key = HashName(tensor.name) ^ (static_cast<uint64_t>(seed) * 0x9E3779B97F4A7C15u);
  const int64_t groups = (range.end + 3) / 4;
#pragma omp parallel for schedule(static)
  for (int64_t group = range.begin / 4; group < groups; ++group) {
    const std::array<float, 4> drawn = Draw(tensor.init, tensor.scale, key, group);
    const Slice part = range.Common({4 * group, 4 * group + 4});
    for (int64_t i = part.begin; i < part.end; ++i) {
      values[i - range.begin] = drawn[i - 4 * group];
    }
  }
}

// Rounds up to a multiple of 16 elements: 64 bytes of fp32, 32 of bf16. The sizes of projections
// are multiples of 16 already.
int64_t Aligned(int64_t elements) { return (elements + 15) / 16 * 16; }

// Lists the tensors of a model in order.
class Builder {
 public:
  Builder(const ModelConfig& config, const v1::ModelSpec& model)
      : config_(config), tied_(model.tie_embeddings()) {}

  std::vector<ParameterInfo> Build() && {
    Normal("embed.weight", {config_.vocab, config_.dim});
    // As the head of a GPU it is a matrix with PaddedVocab() rows.
    if (tied_) next_ = Aligned(PaddedVocab(config_.vocab) * config_.dim);
    for (int layer = 0; layer < config_.n_layers; ++layer) {
      prefix_ = absl::StrCat("blocks.", layer, ".");
      Block(config_.AttentionOf(layer));
    }
    prefix_.clear();
    Ones("norm_f.weight", config_.dim);
    if (!tied_) Normal("lm_head.weight", {config_.vocab, config_.dim});
    return std::move(tensors_);
  }

 private:
  void Block(const NsaLayerConfig& attention) {
    const NsaShape& shape = attention.shape;
    Ones("norm1.weight", config_.dim);
    Hidden("attn.W_Q.weight", {int64_t{shape.n_heads} * shape.d_k, config_.dim});
    // These follow W_Q without a gap, so that one matrix product computes q and every k and v.
    for (const Branch branch : kProjectionOrder) {
      if (!attention.has(branch)) continue;
      const char* name = kBranchNames[branch];
      Hidden(absl::StrCat("attn.W_K_", name, ".weight"),
             {int64_t{shape.n_kv_groups} * shape.d_k, config_.dim});
      Hidden(absl::StrCat("attn.W_V_", name, ".weight"),
             {int64_t{shape.n_kv_groups} * shape.d_v, config_.dim});
    }
    ResidualOutput("attn.out.weight", {config_.dim, int64_t{shape.n_heads} * shape.d_v});
    if (config_.qkv_bias) Biases(attention);
    if (attention.qk_norm_weights) {
      Ones("attn.q_norm.weight", shape.d_k);
      Ones("attn.k_norm.weight", shape.d_k);
    }
    if (attention.has_gate()) GateTensors(attention.n_branches());
    if (attention.has_phi()) {
      PhiTensors("attn.phi_k.", shape.d_k);
      PhiTensors("attn.phi_v.", shape.d_v);
    }
    Ones("norm2.weight", config_.dim);
    // fc1 follows without a gap, so that one matrix product computes both: hidden is a multiple of
    // 16.
    if (config_.swiglu) Hidden("mlp.gate.weight", {config_.hidden, config_.dim});
    Hidden("mlp.fc1.weight", {config_.hidden, config_.dim});
    ResidualOutput("mlp.fc2.weight", {config_.dim, config_.hidden});
  }

  // One vector without gaps, in the order of the columns of the projections.
  void Biases(const NsaLayerConfig& attention) {
    const NsaShape& shape = attention.shape;
    const auto add = [&](const std::string& name, int64_t heads, int64_t width) {
      Add(absl::StrCat("attn.W_", name, ".bias"), {heads * width}, Init::kZeros, 0);
    };
    add("Q", shape.n_heads, shape.d_k);
    for (const Branch branch : kProjectionOrder) {
      if (!attention.has(branch)) continue;
      add(absl::StrCat("K_", kBranchNames[branch]), shape.n_kv_groups, shape.d_k);
      add(absl::StrCat("V_", kBranchNames[branch]), shape.n_kv_groups, shape.d_v);
    }
  }

  void GateTensors(int64_t branches) {
    const int64_t d_k = config_.attention.shape.d_k;
    const int64_t hidden = GateHidden(d_k);
    const float fc1 = 1.0f / std::sqrt(static_cast<float>(d_k));
    const float fc2 = 0.1f * std::sqrt(6.0f / static_cast<float>(hidden + branches));
    Add("attn.gate.fc1.weight", {hidden, d_k}, Init::kUniform, fc1);
    Add("attn.gate.fc1.bias", {hidden}, Init::kUniform, fc1);
    Add("attn.gate.fc2.weight", {branches, hidden}, Init::kUniform, fc2);
    Add("attn.gate.fc2.bias", {branches}, Init::kZeros, 0);
  }

  void PhiTensors(const std::string& name, int64_t width) {
    const int64_t l = config_.attention.shape.l, m = PhiHidden(width);
    const float fc1 = 1.0f / std::sqrt(static_cast<float>(l * width));
    const float fc2 = 1.0f / std::sqrt(static_cast<float>(m));
    Add(name + "position", {l, width}, Init::kUniform, fc1);
    Add(name + "fc1.weight", {m, l * width}, Init::kUniform, fc1);
    Add(name + "fc1.bias", {m}, Init::kUniform, fc1);
    Add(name + "fc2.weight", {width, m}, Init::kUniform, fc2);
    Add(name + "fc2.bias", {width}, Init::kUniform, fc2);
  }

  void Ones(const std::string& name, int64_t size) { Add(name, {size}, Init::kOnes, 0); }

  void Normal(const std::string& name, std::vector<int64_t> shape) {
    Add(name, std::move(shape), Init::kNormal, kInitStd);
  }

  void Hidden(const std::string& name, std::vector<int64_t> shape) {
    Normal(name, std::move(shape));
    tensors_.back().hidden = true;
  }

  // Projections onto the residual stream start smaller, since 2·n_layers of them add up (GPT-2).
  void ResidualOutput(const std::string& name, std::vector<int64_t> shape) {
    Add(name, std::move(shape), Init::kNormal,
        kInitStd / std::sqrt(2.0f * static_cast<float>(config_.n_layers)));
    tensors_.back().hidden = true;
  }

  void Add(const std::string& name, std::vector<int64_t> shape, Init init, float scale) {
    ParameterInfo tensor{.name = prefix_ + name, .shape = std::move(shape), .offset = next_};
    tensor.size = 1;
    for (const int64_t length : tensor.shape) tensor.size *= length;
    tensor.decay = tensor.shape.size() > 1;
    tensor.init = init;
    tensor.scale = scale;
    next_ += Aligned(tensor.size);
    tensors_.push_back(std::move(tensor));
  }

  static constexpr float kInitStd = 0.02f;
  const ModelConfig& config_;
  const bool tied_;
  std::string prefix_;
  std::vector<ParameterInfo> tensors_;
  int64_t next_ = 0;
};

}  // namespace

ParameterLayout::ParameterLayout(const v1::JobSpec& spec)
    : tensors_(Builder(ModelConfigOf(spec), spec.model()).Build()) {
  const ParameterInfo& last = tensors_.back();
  size_ = Aligned(last.offset + last.size);
  if (!spec.model().tie_embeddings())
    tail_ = std::max<int64_t>(0, last.offset + PaddedVocab(last.shape[0]) * last.shape[1] - size_);
  for (const ParameterInfo& tensor : tensors_) count_ += tensor.size;
}

absl::StatusOr<const ParameterInfo*> ParameterLayout::Find(std::string_view name) const {
  for (const ParameterInfo& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return absl::NotFoundError(
      absl::StrCat("parameter: ", absl::string_view(name.data(), name.size()),
                   " (not in this model); compare model and nsa of the job"));
}

Arena::Arena(const ParameterLayout* layout) : Arena(layout, Slice{0, layout->size()}) {}

Arena::Arena(const ParameterLayout* layout, const Slice& slice)
    : layout_(layout), slice_(slice), values_(slice.size() * static_cast<int64_t>(sizeof(float))) {}

absl::StatusOr<Arena> Arena::Create(const ParameterLayout* layout, const Options& options,
                                    const std::string& what) {
  Arena arena;
  arena.layout_ = layout;
  const bool cuda = options.backend == Backend::kCuda;
  const bool all = !options.slice.has_value() && !options.room.has_value();
  if (all) arena.slice_ = {0, layout->size()};
  arena.slice_ = options.slice.value_or(arena.slice_);
  arena.tail_ = cuda && all ? layout->tail() : 0;
  arena.extras_ = options.extras;
  if (options.room.has_value() && options.half) {
    NSA_ASSIGN_OR_RETURN(arena.half_, Memory::Allocate(options.backend, 2 * *options.room, what));
    return arena;
  }
  const int64_t floats = options.room.value_or(arena.slice_.size() + arena.tail_ + arena.extras_);
  NSA_ASSIGN_OR_RETURN(arena.values_, Memory::Allocate(options.backend, 4 * floats, what));
  if (!options.half) return arena;
  arena.half_slice_ = options.half_slice ? arena.slice_ : Slice{0, layout->size()};
  const int64_t tail = options.half_slice ? 0 : layout->tail();
  NSA_ASSIGN_OR_RETURN(arena.half_,
                       Memory::Allocate(options.backend, 2 * (arena.half_slice_.size() + tail),
                                        absl::StrCat(what, " in bf16")));
  return arena;
}

void Arena::MoveTo(const Slice& slice, int64_t at) {
  begin_ = at;
  if (half_.bytes() > 0) {
    half_slice_ = slice;
    return;
  }
  slice_ = slice;
  tail_ = !values_.on_host() && slice.end == layout_->size() ? layout_->tail() : 0;
}

absl::Status CopyArena(const Exec& exec, const Arena& from, Arena* to) {
  const Slice both = from.slice().Common(to->slice());
  if (exec.backend == Backend::kCpu) {
    if (!both.empty()) std::ranges::copy(from.of(both), to->of(both).begin());
    return absl::OkStatus();
  }
  if (!both.empty()) {
    NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec.stream, to->of(both).data(), from.of(both).data(),
                                        both.size() * static_cast<int64_t>(sizeof(float))));
  }
  std::vector<bf16> half(static_cast<size_t>(to->half().size));
  const std::span<const float> rounded =
      half.empty() ? std::span<const float>() : from.of(to->half_slice());
#pragma omp parallel for schedule(static)
  for (size_t i = 0; i < half.size(); ++i) half[i] = bf16(rounded[i]);
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec.stream, to->half().data, half.data(),
                                      static_cast<int64_t>(half.size() * sizeof(bf16))));
  return cuda::Synchronize(exec.stream);
}

void Initialize(int64_t seed, Arena* parameters) {
  for (const ParameterInfo& tensor : parameters->layout().tensors()) {
    const Slice part = parameters->slice().Common({tensor.offset, tensor.offset + tensor.size});
    if (part.empty()) continue;
    Fill(tensor, seed, {part.begin - tensor.offset, part.end - tensor.offset},
         parameters->of(part));
  }
}

}  // namespace nsa::train
