// A model's configuration, read from its job. This is the only place where the trainer reads
// spec.model and spec.nsa.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/estimate/memory/logits.h"
#include "common/estimate/memory/memory.h"
#include "kernels/exec.h"
#include "kernels/nn/activation.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "nsa/v1/job.pb.h"

namespace nsa::train {

struct ModelConfig {
  // Of all layers. Its branches are those that any layer has; its shape is that of the attention on
  // one rank: the rows of a micro-batch, all tokens, and 1/context of the heads and groups. The
  // window is that of layers that are not full.
  NsaLayerConfig attention;
  int32_t context = 1;                 // N, ranks that share a sequence (context/context_group.h)
  std::vector<LayerAttention> layers;  // in turn (common/estimate/layers.h)
  bool rotates_windows_only = false;   // full layers, and those without win, have no rotation
  int32_t dim = 0;                     // D
  int32_t n_layers = 0;
  bool qkv_bias = false;
  int32_t hidden = 0;   // units of the MLP
  bool swiglu = false;  // fc2(silu(gate(x)) · fc1(x)), else fc2(act(fc1(x)))
  // Outputs of the MLP's first product: [gate | fc1] with SwiGLU.
  int64_t mlp_inputs() const { return int64_t{swiglu ? 2 : 1} * hidden; }
  Activation activation = Activation::kSilu;
  int32_t vocab = 0;  // V
  // Columns of the logits in memory, V or more.
  int64_t logit_columns() const {
    return attention.dtype == DType::kBf16 ? PaddedVocab(vocab) : vocab;
  }
  // Rows of logits in memory at a time, of rows().
  int64_t logit_rows() const {
    return attention.dtype == DType::kBf16 ? LogitRows(rows(), logit_columns()) : rows();
  }
  Recompute recompute = Recompute::kNothing;

  // Whether a layer is full: it reads all of the shape's seq_len tokens.
  bool IsFull(int32_t layer) const { return layers[layer % layers.size()].full; }
  NsaLayerConfig AttentionOf(int32_t layer) const;

  // Tokens of this rank, B·S/N.
  int64_t rows() const {
    return int64_t{attention.shape.batch} * attention.shape.seq_len / context;
  }
  // Columns of a layer's projections, and of the attention's output, over all heads.
  int64_t ProjectionWidthOf(const NsaLayerConfig& layer) const;
  int64_t output_width() const {
    return int64_t{context} * attention.shape.n_heads * attention.shape.d_v;
  }

  // Divides the heads among `ranks` ranks. InvalidArgument when they, the groups or the tokens
  // cannot be divided.
  absl::Status DivideContext(int32_t ranks);

  // InvalidArgument when the shape or the branches of a layer are outside the limits of the kernels
  // of `backend`.
  absl::Status Validate(Backend backend) const;
};

// `spec` must have its defaults filled in (common/job/load.h).
ModelConfig ModelConfigOf(const v1::JobSpec& spec);

}  // namespace nsa::train
