#include "worker/train/model/model_products.h"

#include <algorithm>
#include <iterator>

#include "worker/train/model/linear.h"

namespace nsa::train {
namespace {

// The widths of the projections of all layers, each once.
std::vector<int64_t> ProjectionWidths(const ModelConfig& config) {
  std::vector<int64_t> widths;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const int64_t width = config.ProjectionWidthOf(config.AttentionOf(layer));
    if (std::find(widths.begin(), widths.end(), width) == widths.end()) widths.push_back(width);
  }
  return widths;
}

}  // namespace

std::vector<MatmulArgs> ProductsOf(const ModelConfig& config, int32_t passes) {
  const int64_t rows = config.rows();
  struct Layer {
    LinearShape shape;
    bool adds;  // to the residual stream
  };
  std::vector<Layer> layers;
  for (const int64_t width : ProjectionWidths(config)) {
    layers.push_back({{rows, config.dim, width}, false});
  }
  const Layer others[] = {
      {{rows, config.output_width(), config.dim}, true},
      {{rows, config.dim, config.hidden}, false},
      {{rows, config.hidden, config.dim}, true},
      {{rows, config.dim, config.logit_columns()}, false},
  };
  layers.insert(layers.end(), std::begin(others), std::end(others));
  const Tensor activation(nullptr, 0, config.attention.dtype), gradient(nullptr, 0, DType::kF32);
  std::vector<MatmulArgs> products;
  for (const auto& [s, adds] : layers) {
    // As in linear.h: y = x Wᵀ; dW = dyᵀ x; dx = dy W.
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
                        .c = gradient});
    if (passes > 1) {
      products.push_back(products.back());
      products.back().accumulate = true;
    }
    products.push_back(
        {.m = s.rows, .n = s.in, .k = s.out, .a = activation, .b = activation, .c = activation});
  }
  return products;
}

}  // namespace nsa::train
