// The trainable parameters: one flat fp32 arena in which every tensor has a name, a shape and an
// offset. Everything else with one number per parameter (gradients, moments) has the same
// layout. Tensors begin at multiples of 16 elements, as matrix libraries on GPUs require; the gaps
// are always 0. Names and order are those of the Python system, so that its tools can read these
// checkpoints; docs/formats.md has the shapes:
//
//   embed.weight
//   blocks.<i>.norm1.weight
//   blocks.<i>.attn.{W_Q, W_K_sel, W_V_sel, W_K_win, W_V_win, W_K_cmp, W_V_cmp, out}.weight
//   blocks.<i>.attn.{W_Q, …, W_V_cmp}.bias       with qkv_bias
//   blocks.<i>.attn.{q_norm, k_norm}.weight       with qk_norm_weights
//   blocks.<i>.attn.gate.{fc1, fc2}.{weight, bias}
//   blocks.<i>.attn.phi_{k, v}.…          with phi: mlp
//   blocks.<i>.norm2.weight, blocks.<i>.mlp.{fc1, fc2}.weight, with SwiGLU also mlp.gate.weight
//   norm_f.weight, lm_head.weight
//
// Without lm_head.weight where the embedding is also the head (model.tie_embeddings).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/model/memory.h"
#include "worker/train/model/slice.h"

namespace nsa::train {

// Initial values of a tensor.
enum class Init {
  kZeros,
  kOnes,
  kNormal,   // N(0, scale²)
  kUniform,  // U(−scale, scale)
};

struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;  // [out, in] for matrices
  int64_t offset = 0;          // of its first element in the arena
  int64_t size = 0;            // elements
  bool decay = false;          // weight decay applies: to every tensor with two dimensions
  bool hidden = false;         // weights of a projection or an MLP in a block: what Muon updates
  Init init = Init::kZeros;
  float scale = 0;
};

// Names, shapes and offsets; a pure function of the spec.
class ParameterLayout {
 public:
  explicit ParameterLayout(const v1::JobSpec& spec);

  std::span<const ParameterInfo> tensors() const { return tensors_; }
  int64_t size() const { return size_; }  // elements of the arena
  // Elements behind the arena that make lm_head.weight, the last tensor, a matrix with
  // PaddedVocab() rows. On a GPU, products read and write them; they are 0. An embedding that is
  // also the head has them in a gap behind it instead.
  int64_t tail() const { return tail_; }
  int64_t count() const { return count_; }  // parameters

  // The tensor called `name`. NotFound when there is none.
  absl::StatusOr<const ParameterInfo*> Find(std::string_view name) const;

 private:
  std::vector<ParameterInfo> tensors_;
  int64_t size_ = 0;
  int64_t tail_ = 0;
  int64_t count_ = 0;
};

// A flat buffer with a layout: values, gradients or moments; all of the layout's elements, or a
// slice of them. On a GPU its spans are device memory, which only kernels and copies may access.
class Arena {
 public:
  struct Options {
    Backend backend = Backend::kCpu;
    bool half =
        false;  // CUDA only: also a bf16 copy of all elements, which kernels read as weights
    int64_t extras = 0;          // number of floats behind the values and the tail
    std::optional<Slice> slice;  // the elements that it has values of; all if there is none
    bool half_slice = false;     // the bf16 copy has the elements of `slice` only
    // Memory for so many values, in place of `slice`: MoveTo() says which elements it has. With
    // `half` they are bf16, and there are no floats.
    std::optional<int64_t> room;
  };

  Arena() = default;

  // Zeros of all elements, or of a slice, in host memory.
  explicit Arena(const ParameterLayout* layout);
  Arena(const ParameterLayout* layout, const Slice& slice);

  // Zeros, on the device of `options.backend`; on a GPU an arena of all elements has the layout's
  // tail behind them, as has the bf16 copy. ResourceExhausted, naming `what`, when the GPU has
  // too little free memory.
  static absl::StatusOr<Arena> Create(const ParameterLayout* layout, const Options& options,
                                      const std::string& what);

  // Of an arena with Options::room: from now on it has the elements of `slice`, from value `at` of
  // its memory on, and on a GPU behind the last element of the layout its tail. The caller sees to
  // it that they fit. Moves no values.
  void MoveTo(const Slice& slice, int64_t at);

  const ParameterLayout& layout() const { return *layout_; }
  // The elements that flat() has; those of the layout unless the arena was made for a slice.
  const Slice& slice() const { return slice_; }
  std::span<float> flat() { return {values(), static_cast<size_t>(slice_.size())}; }
  std::span<const float> flat() const { return {values(), static_cast<size_t>(slice_.size())}; }
  // Elements of the layout, which slice() contains.
  std::span<float> of(const Slice& part) {
    return flat().subspan(part.begin - slice_.begin, part.size());
  }
  std::span<const float> of(const Slice& part) const {
    return flat().subspan(part.begin - slice_.begin, part.size());
  }
  std::span<float> of(const ParameterInfo& tensor) {
    return of(Slice{tensor.offset, tensor.offset + tensor.size});
  }
  std::span<const float> of(const ParameterInfo& tensor) const {
    return of(Slice{tensor.offset, tensor.offset + tensor.size});
  }

  // Elements of the layout whose first one is in slice(); they may reach into the tail.
  std::span<float> with_tail(const Slice& part) {
    return with_extras().subspan(part.begin - slice_.begin, part.size());
  }

  // Values, tail and extras in one span, for the sum over ranks.
  std::span<float> with_extras() {
    return {values(), static_cast<size_t>(slice_.size() + tail_ + extras_)};
  }
  std::span<float> extras() { return with_extras().subspan(slice_.size() + tail_); }

  // The bf16 values, or a part of them, which may reach into the tail; empty without them.
  Tensor half() const { return half(half_slice_); }
  Tensor half(const Slice& part) const {
    if (half_.bytes() == 0) return {};
    return {half_at(part.begin), part.size(), DType::kBf16};
  }
  // The elements that half() has: all, or slice() with Options::half_slice or room.
  const Slice& half_slice() const { return half_slice_; }

  // Elements [offset, offset + size), which the arena has, for kernels that read weights: the bf16
  // values if there are any, also those of the tail, else the fp32 values.
  ConstTensor weight(int64_t offset, int64_t size) const {
    if (half_.bytes() == 0) return of(Slice{offset, offset + size});
    return {half_at(offset), size, DType::kBf16};
  }

  int64_t bytes() const { return values_.bytes() + half_.bytes(); }

 private:
  float* values() const { return reinterpret_cast<float*>(values_.data()) + begin_; }
  std::byte* half_at(int64_t element) const {
    return half_.data() + 2 * (begin_ + element - half_slice_.begin);
  }

  const ParameterLayout* layout_ = nullptr;  // borrowed
  Slice slice_, half_slice_;
  int64_t begin_ = 0;  // values before those of the slice; above 0 only with room
  int64_t tail_ = 0;
  int64_t extras_ = 0;
  Memory values_;
  Memory half_;
};

// to ← from, between the host and the GPU of `exec`, or within one of them. Waits for the copy.
// Copies the elements that both have. When `to` has a bf16 copy, `from` must have its elements, in
// host memory.
absl::Status CopyArena(const Exec& exec, const Arena& from, Arena* to);

// Fills `parameters`, in host memory, with initial values of the elements that it has. Each is a
// pure function of (seed, tensor name, index), so it does not depend on threads, ranks or others.
void Initialize(int64_t seed, Arena* parameters);

}  // namespace nsa::train
