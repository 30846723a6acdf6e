#include "worker/train/model/model_products.h"

#include <algorithm>

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

struct Layer {
  LinearShape shape;
  bool adds;  // to the residual stream
};

// Each once, for all rows; the head for a piece of them (output_head.h) and for the last piece.
std::vector<Layer> LayersOf(const ModelConfig& config) {
  const int64_t rows = config.rows();
  std::vector<Layer> layers;
  for (const int64_t width : ProjectionWidths(config)) {
    layers.push_back({{rows, config.dim, width}, false});
  }
  layers.push_back({{rows, config.output_width(), config.dim}, true});
  layers.push_back({{rows, config.dim, config.mlp_inputs()}, false});
  layers.push_back({{rows, config.hidden, config.dim}, true});
  const int64_t piece = config.logit_rows();
  layers.push_back({{piece, config.dim, config.logit_columns()}, false});
  if (rows % piece != 0) {
    layers.push_back({{rows % piece, config.dim, config.logit_columns()}, false});
  }
  return layers;
}

}  // namespace

std::vector<MatmulArgs> ProductsOf(const ModelConfig& config, int32_t passes) {
  const Tensor activation(nullptr, 0, config.attention.dtype), gradient(nullptr, 0, DType::kF32);
  std::vector<MatmulArgs> products;
  for (const auto& [s, adds] : LayersOf(config)) {
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
    if (passes > 1 || s.rows < config.rows()) {
      products.push_back(products.back());
      products.back().accumulate = true;
    }
    products.push_back(
        {.m = s.rows, .n = s.in, .k = s.out, .a = activation, .b = activation, .c = activation});
  }
  return products;
}

}  // namespace nsa::train
