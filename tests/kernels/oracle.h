// Reference implementation of NSA attention in fp64, written from the formulas and made only to be
// obviously correct: every sum runs over all keys and asks of each whether it is visible. Shares no
// code with kernels/.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/nsa/nsa_shape.h"
#include "kernels/nsa/layer/nsa_layer.h"

namespace nsa::oracle {

using Array = std::vector<double>;

// Radians per position of the pair (2i, 2i+1): base^(−2i/dk), or as Llama 3 and YaRN stretch it.
inline double RopeFrequency(double base, int64_t two_i, int64_t width, const RopeScaling& scaling) {
  const auto i = static_cast<double>(two_i), dk = static_cast<double>(width);
  const double frequency = std::pow(base, -i / dk), turn = 2 * std::acos(-1.0);
  double kept = 1;
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    const double wavelength = turn / frequency;
    kept = (scaling.original / wavelength - scaling.low) / (scaling.high - scaling.low);
  } else if (scaling.kind == RopeScaling::Kind::kYarn) {
    const auto pair_with = [&](double turns) {
      return dk * std::log(scaling.original / (turns * turn)) / (2 * std::log(base));
    };
    const double first = std::max(std::floor(pair_with(scaling.high)), 0.0);
    const double last = std::min(std::ceil(pair_with(scaling.low)), dk - 1);
    kept = (last - i / 2) / (last - first);
  }
  kept = std::clamp(kept, 0.0, 1.0);
  return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

// y[b,t,a,:]: pairs (2i, 2i+1) rotated by the angle (t / scale) · their frequency.
inline Array Rope(const Array& x, int64_t seq_len, int64_t heads, int64_t width, double base,
                  double scale, const RopeScaling& scaling = {}) {
  Array y(x.size());
  for (size_t at = 0; at < x.size(); at += 2) {
    const int64_t t = static_cast<int64_t>(at) / (heads * width) % seq_len;
    const int64_t two_i = static_cast<int64_t>(at) % width;
    const double theta =
        static_cast<double>(t) / scale * RopeFrequency(base, two_i, width, scaling);
    y[at] = x[at] * std::cos(theta) - x[at + 1] * std::sin(theta);
    y[at + 1] = x[at] * std::sin(theta) + x[at + 1] * std::cos(theta);
  }
  return y;
}

// x divided head by head by √(mean(x²) + eps).
inline Array Normalized(const Array& x, int64_t width, double eps = 1e-6) {
  Array y(x.size());
  for (size_t head = 0; head < x.size(); head += width) {
    double squares = 0;
    for (int64_t c = 0; c < width; ++c) squares += x[head + c] * x[head + c];
    for (int64_t c = 0; c < width; ++c) {
      y[head + c] = x[head + c] / std::sqrt(squares / static_cast<double>(width) + eps);
    }
  }
  return y;
}

struct Phi {
  Array pe, w1, b1, w2, b2;  // shapes as nsa::PhiParams; empty for the mean
};

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// φ over the l tokens of each block.
inline Array Compress(const NsaShape& s, int64_t width, const Phi& phi, const Array& x) {
  const int64_t blocks = s.cmp_blocks(), m = static_cast<int64_t>(phi.b1.size());
  Array y(s.batch * blocks * s.n_kv_groups * width, 0.0);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t i = 0; i < blocks; ++i) {
      for (int64_t g = 0; g < s.n_kv_groups; ++g) {
        const auto in = [&](int64_t r, int64_t c) {
          return x[((b * s.seq_len + i * s.d + r) * s.n_kv_groups + g) * width + c];
        };
        double* out = &y[((b * blocks + i) * s.n_kv_groups + g) * width];
        if (phi.pe.empty()) {
          for (int64_t c = 0; c < width; ++c) {
            for (int64_t r = 0; r < s.l; ++r) out[c] += in(r, c) / s.l;
          }
          continue;
        }
        for (int64_t c = 0; c < width; ++c) out[c] = phi.b2[c];
        for (int64_t unit = 0; unit < m; ++unit) {
          double z = phi.b1[unit];
          for (int64_t r = 0; r < s.l; ++r) {
            for (int64_t c = 0; c < width; ++c) {
              z += phi.w1[(unit * s.l + r) * width + c] * (in(r, c) + phi.pe[r * width + c]);
            }
          }
          for (int64_t c = 0; c < width; ++c) out[c] += phi.w2[c * m + unit] * z * Sigmoid(z);
        }
      }
    }
  }
  return y;
}

// visible(b, g, t, j): whether the query at t sees key j.
using Visible = std::function<bool(int64_t b, int64_t g, int64_t t, int64_t j)>;

// The probabilities of head a at (b, t) over `keys` keys; all 0 when none is visible.
inline Array Probabilities(const NsaShape& s, int64_t keys, const Array& q, const Array& k,
                           const Visible& visible, int64_t b, int64_t t, int64_t a) {
  const int64_t g = a / s.heads_per_group();
  Array p(keys, 0.0);
  double max = -1e300, sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    if (!visible(b, g, t, j)) continue;
    for (int64_t c = 0; c < s.d_k; ++c) {
      p[j] += q[((b * s.seq_len + t) * s.n_heads + a) * s.d_k + c] *
              k[((b * keys + j) * s.n_kv_groups + g) * s.d_k + c] / std::sqrt(s.d_k);
    }
    max = std::max(max, p[j]);
  }
  for (int64_t j = 0; j < keys; ++j) {
    if (visible(b, g, t, j)) sum += p[j] = std::exp(p[j] - max);
  }
  for (int64_t j = 0; j < keys; ++j) p[j] = visible(b, g, t, j) ? p[j] / sum : 0;
  return p;
}

inline Array Attend(const NsaShape& s, int64_t keys, const Array& q, const Array& k, const Array& v,
                    const Visible& visible) {
  Array o(s.o_size(), 0.0);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t t = 0; t < s.seq_len; ++t) {
      for (int64_t a = 0; a < s.n_heads; ++a) {
        const Array p = Probabilities(s, keys, q, k, visible, b, t, a);
        const int64_t g = a / s.heads_per_group();
        double* out = &o[((b * s.seq_len + t) * s.n_heads + a) * s.d_v];
        for (int64_t j = 0; j < keys; ++j) {
          if (p[j] == 0) continue;
          for (int64_t c = 0; c < s.d_v; ++c) {
            out[c] += p[j] * v[((b * keys + j) * s.n_kv_groups + g) * s.d_v + c];
          }
        }
      }
    }
  }
  return o;
}

// doc(b, t): first token of t's document.
using Doc = std::function<int64_t(int64_t b, int64_t t)>;
inline Doc DocOf(const NsaShape& s, std::vector<int32_t> doc_start) {
  return [=](int64_t b, int64_t t) -> int64_t {
    return doc_start.empty() ? 0 : doc_start[b * s.seq_len + t];
  };
}

inline Visible SeesCompressed(const NsaShape& s, const Doc& doc) {
  return [=](int64_t b, int64_t, int64_t t, int64_t i) {
    return i * s.d >= doc(b, t) && i * s.d + s.l - 1 <= t;
  };
}
inline Visible SeesWindow(const NsaShape& s, const Doc& doc) {
  return [=](int64_t b, int64_t, int64_t t, int64_t j) {
    return j <= t && t - j < s.window && j >= doc(b, t);
  };
}
inline Visible SeesSelected(const NsaShape& s, const Doc& doc, const std::vector<int32_t>& blocks) {
  return [=, &blocks](int64_t b, int64_t g, int64_t t, int64_t j) {
    if (j > t || j < doc(b, t)) return false;
    const auto* ids = &blocks[((b * s.seq_len + t) * s.n_kv_groups + g) * s.n_sel];
    return std::find(ids, ids + s.n_sel, j / s.l_sel) != ids + s.n_sel;
  };
}
inline Visible SeesAllPast() {
  return [](int64_t, int64_t, int64_t t, int64_t j) { return j <= t; };
}

// score[b,t,g,j] = Σ over the group's heads and the visible blocks of p · (common tokens / l).
inline Array Scores(const NsaShape& s, const Array& q, const Array& k_cmp, const Doc& doc) {
  const int64_t blocks = s.cmp_blocks(), sel = s.sel_blocks();
  const Visible visible = SeesCompressed(s, doc);
  Array scores(s.batch * s.seq_len * s.n_kv_groups * sel, 0.0);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t t = 0; t < s.seq_len; ++t) {
      for (int64_t a = 0; a < s.n_heads; ++a) {
        const Array p = Probabilities(s, blocks, q, k_cmp, visible, b, t, a);
        const int64_t g = a / s.heads_per_group();
        double* out = &scores[((b * s.seq_len + t) * s.n_kv_groups + g) * sel];
        for (int64_t i = 0; i < blocks; ++i) {
          for (int64_t token = i * s.d; token < i * s.d + s.l; ++token) {
            out[token / s.l_sel] += p[i] / s.l;
          }
        }
      }
    }
  }
  return scores;
}

// Chooses forced blocks first, then by score and id, in the output format of nsa::ChooseBlocks.
template <class Score>
std::vector<int32_t> Choose(const NsaShape& s, const std::vector<Score>& scores, const Doc& doc) {
  std::vector<int32_t> chosen(s.blocks_size(), -1);
  for (int64_t row = 0; row < static_cast<int64_t>(chosen.size()) / s.n_sel; ++row) {
    const int64_t token = row / s.n_kv_groups, t = token % s.seq_len, b = token / s.seq_len;
    const int32_t f = static_cast<int32_t>(doc(b, t) / s.l_sel);
    const int32_t c = static_cast<int32_t>(t / s.l_sel);
    const auto forced = [&](int32_t id) { return id == f || id == c || id == c - 1; };
    std::vector<int32_t> ids;
    for (int32_t id = f; id <= c; ++id) ids.push_back(id);
    std::sort(ids.begin(), ids.end(), [&](int32_t x, int32_t y) {
      if (forced(x) != forced(y)) return forced(x);
      const Score sx = scores[row * s.sel_blocks() + x], sy = scores[row * s.sel_blocks() + y];
      return sx != sy ? sx > sy : x < y;
    });
    if (static_cast<int32_t>(ids.size()) > s.n_sel) ids.resize(s.n_sel);
    std::sort(ids.begin(), ids.end());
    std::copy(ids.begin(), ids.end(), chosen.begin() + row * s.n_sel);
  }
  return chosen;
}

struct Gate {
  Array fc1_w, fc1_b, fc2_w, fc2_b;  // shapes as nsa::GateParams
};

// gates[b,t,g,c] from q before RoPE.
inline Array Gates(const NsaShape& s, GateKind kind, int64_t n, const Array& q, const Gate& gate) {
  const int64_t hidden = static_cast<int64_t>(gate.fc1_b.size()), h = s.heads_per_group();
  Array gates(s.batch * s.seq_len * s.n_kv_groups * n);
  for (int64_t row = 0; row < s.batch * s.seq_len * s.n_kv_groups; ++row) {
    double* z = &gates[row * n];
    for (int64_t c = 0; c < n; ++c) z[c] = gate.fc2_b[c];
    for (int64_t unit = 0; unit < hidden; ++unit) {
      double y = gate.fc1_b[unit];
      for (int64_t c = 0; c < s.d_k; ++c) {
        double mean = 0;
        for (int64_t a = 0; a < h; ++a) mean += q[(row * h + a) * s.d_k + c] / h;
        y += gate.fc1_w[unit * s.d_k + c] * mean;
      }
      for (int64_t c = 0; c < n; ++c) z[c] += gate.fc2_w[c * hidden + unit] * y * Sigmoid(y);
    }
    double sum = 0;
    for (int64_t c = 0; c < n; ++c) {
      z[c] = kind == GateKind::kSigmoid ? Sigmoid(z[c]) : std::exp(z[c]);
      sum += z[c];
    }
    for (int64_t c = 0; c < n && kind == GateKind::kSoftmax; ++c) z[c] /= sum;
  }
  return gates;
}

struct Layer {
  NsaLayerConfig config;
  Array q;                            // before RoPE
  std::array<Array, kBranches> k, v;  // before RoPE; empty when absent
  Gate gate;
  Phi phi_k, phi_v;
  std::vector<int32_t> doc_start;
};

struct LayerResult {
  Array o, scores, gates;
  std::array<Array, kBranches> o_branch;
  std::vector<int32_t> blocks;
};

// `fixed_blocks`, when given, replaces the choice of blocks, so that no gradient flows through it.
inline LayerResult Forward(const Layer& layer, const std::vector<int32_t>* fixed_blocks = nullptr) {
  const NsaLayerConfig& config = layer.config;
  const NsaShape& s = config.shape;
  const Doc doc = DocOf(s, layer.doc_start);
  const auto rope = [&](const Array& x, int64_t heads) {
    return Rope(config.qk_norm ? Normalized(x, s.d_k, double{config.norm_eps}) : x, s.seq_len,
                heads, s.d_k, config.rope_base, config.rope_scale, config.rope_scaling);
  };
  const Array q = rope(layer.q, s.n_heads);
  std::array<Array, kBranches> k;
  for (int c = 0; c < kBranches; ++c) k[c] = rope(layer.k[c], s.n_kv_groups);
  Array k_cmp;
  if (config.has(kCmp)) {
    k_cmp = Compress(s, s.d_k, layer.phi_k, k[kCmp]);
  } else if (config.has(kSel)) {
    k_cmp = Compress(s, s.d_k, {}, k[kSel]);
  }
  LayerResult result;
  if (config.has(kCmp)) {
    const Array v_cmp = Compress(s, s.d_v, layer.phi_v, layer.v[kCmp]);
    result.o_branch[kCmp] = Attend(s, s.cmp_blocks(), q, k_cmp, v_cmp, SeesCompressed(s, doc));
  }
  if (config.has(kSel)) {
    if (fixed_blocks != nullptr) {
      result.blocks = *fixed_blocks;
    } else {
      result.scores = Scores(s, q, k_cmp, doc);
      result.blocks = Choose(s, result.scores, doc);
    }
    result.o_branch[kSel] =
        Attend(s, s.seq_len, q, k[kSel], layer.v[kSel], SeesSelected(s, doc, result.blocks));
  }
  if (config.has(kWin)) {
    result.o_branch[kWin] = Attend(s, s.seq_len, q, k[kWin], layer.v[kWin], SeesWindow(s, doc));
  }
  const int64_t n = config.n_branches();
  result.gates = n == 1 ? Array(s.batch * s.seq_len * s.n_kv_groups, 1.0)
                        : Gates(s, config.gate, n, layer.q, layer.gate);
  result.o.assign(s.o_size(), 0.0);
  for (size_t i = 0; i < result.o.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / s.d_v / s.heads_per_group();
    int64_t c = 0;
    for (const Array& branch : result.o_branch) {
      if (!branch.empty()) result.o[i] += result.gates[row * n + c++] * branch[i];
    }
  }
  return result;
}

// dL/dx of L(x) by central differences, element by element. In fp64 with step 1e-5 the error is
// about 1e-10 · |L'''| + 1e-16 · |L| / 1e-5, far below fp32 rounding.
inline Array NumericGradient(Array* x, const std::function<double()>& loss) {
  constexpr double kStep = 1e-5;
  Array gradient(x->size());
  for (size_t i = 0; i < x->size(); ++i) {
    const double before = (*x)[i];
    (*x)[i] = before + kStep;
    const double above = loss();
    (*x)[i] = before - kStep;
    gradient[i] = (above - loss()) / (2 * kStep);
    (*x)[i] = before;
  }
  return gradient;
}

inline double Dot(const Array& x, const Array& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

}  // namespace nsa::oracle
