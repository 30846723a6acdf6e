#include "worker/train/model/model_products.h"

#include "kernels/nsa/layer/projections.h"
#include "worker/train/model/linear.h"

namespace nsa {

std::vector<MatmulArgs> ProductsOf(const ModelConfig& config) {
  const NsaShape& shape = config.attention.shape;
  const int64_t rows = int64_t{shape.batch} * shape.seq_len;
  struct Layer {
    LinearShape shape;
    bool adds;  // to the residual stream
  };
  const Layer layers[] = {
      {{rows, config.dim, ProjectionWidth(config.attention)}, false},
      {{rows, int64_t{shape.n_heads} * shape.d_v, config.dim}, true},
      {{rows, config.dim, config.hidden}, false},
      {{rows, config.hidden, config.dim}, true},
      {{rows, config.dim, config.vocab}, false},
  };
  const Tensor activation(nullptr, 0, config.attention.dtype), gradient(nullptr, 0, DType::kF32);
  std::vector<MatmulArgs> products;
  for (const auto& [s, adds] : layers) {
    // As in linear.h: y = x Wᵀ; dW += dyᵀ x; dx = dy W.
    products.push_back({.m = s.rows,
                        .n = s.out,
                        .k = s.in,
                        .transpose_b = true,
                        .a = activation,
                        .b = activation,
                        .c = activation,
                        .accumulate = adds});
    products.push_back({.m = s.out,
                        .n = s.in,
                        .k = s.rows,
                        .transpose_a = true,
                        .a = activation,
                        .b = activation,
                        .c = gradient,
                        .accumulate = true});
    products.push_back(
        {.m = s.rows, .n = s.in, .k = s.out, .a = activation, .b = activation, .c = activation});
  }
  return products;
}

}  // namespace nsa
