// Block selection on CUDA: scores and choice in one kernel, so that neither [S, S_cmp] nor [S,
// S_sel] reaches memory unless asked for.
//
// A block of threads has a query tile (attention_tile.cuh). For 64 compressed keys at a time:
// logits on the matrix unit, probabilities from the compressed branch's lse, sum over the h heads,
// then each (token, selection block) pair gathers its share of the keys in ascending order. Then a
// warp a token takes the best blocks one after the other. Tiles whose tokens have no more than n
// candidates skip the scores: at S = 2048 and n·l' = 1024 that is half of them.
#include "kernels/cuda/kernels.h"
#include "kernels/nsa/attention_launch.cuh"
#include "kernels/nsa/select_blocks.h"

namespace nsa::cuda {
namespace {

constexpr int kMaxSelected = 64;  // NsaShape's limit of n
constexpr int kMaxScoreBytes = 64 << 10;

// Scores as integers whose order is the choice's: higher is better, NaN is as low as −inf, 0 is
// taken.
__device__ __forceinline__ uint32_t Rank(float score) {
  if (isnan(score)) score = -INFINITY;
  const uint32_t bits = __float_as_uint(score + 0.0f);  // −0 becomes +0
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

// The n slots of one token: forced blocks, the best others, ascending, then −1. One warp; `ranks`
// [S_sel] is destroyed, `ids` has n slots.
__device__ void ChooseRow(int first, int current, int n, uint32_t* ranks, int* ids, int* slots) {
  const int lane = threadIdx.x % kWarp;
  const int candidates = current - first + 1;
  if (candidates <= n) {
    for (int i = lane; i < n; i += kWarp) slots[i] = i < candidates ? first + i : -1;
    return;
  }
  if (lane == 0) {
    ids[0] = first;
    ids[1] = current - 1;
    ids[2] = current;
  }
  for (int slot = 3; slot < n; ++slot) {
    // The highest rank, the lowest id on equal ranks: as one number, rank above inverted id.
    unsigned long long best = 0;
    for (int id = first + 1 + lane; id <= current - 2; id += kWarp) {
      const unsigned long long key =
          (static_cast<unsigned long long>(ranks[id]) << 32) | (0xffffffffu - id);
      if (ranks[id] != 0 && key > best) best = key;
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
      const unsigned long long other = __shfl_xor_sync(0xffffffffu, best, offset);
      best = other > best ? other : best;
    }
    const int id = static_cast<int>(0xffffffffu - static_cast<uint32_t>(best));
    __syncwarp();  // every lane has read before the winner is struck out
    if (lane == 0) {
      ids[slot] = id;
      ranks[id] = 0;
    }
    __syncwarp();
  }
  __syncwarp();
  for (int i = lane; i < n; i += kWarp) {
    int place = 0;
    for (int other = 0; other < n; ++other) place += ids[other] < ids[i];
    slots[place] = ids[i];
  }
  __syncwarp();
}

__device__ __forceinline__ int FirstBlock(const AttentionProblem& p, int b, int t) {
  return p.doc_start == nullptr ? 0 : p.doc_start[int64_t{1} * b * p.seq_len + t] / p.l_sel;
}

struct SelectOutputs {
  const float* lse;  // [B, S, H], or null: computed here
  int* blocks;       // [B, S, G, n]
  float* scores;     // [B, S, G, S_sel] or null
};

// Rows eight banks apart: the eight rows of a warp's accumulators do not meet.
constexpr int kProbabilityStride = kKeyTile + 8;

constexpr int SelectSharedBytes(int dk, int rows_padded, int queries, int sel_blocks) {
  return 2 * dk * (rows_padded + 2 * kKeyTile) + 4 * rows_padded * kProbabilityStride +
         4 * queries * kKeyTile + 4 * queries * sel_blocks + 4 * (rows_padded / 16) * kMaxSelected;
}

// Log2 of the softmax's denominator of a warp's two rows, where the compressed branch did not leave
// it: one pass over the keys.
template <int kD, class Load>
__device__ __forceinline__ void DenominatorPass(const KeyTiles& tiles, const AttentionProblem& p,
                                                const Row (&rows)[2], const bf16* q_tile,
                                                const bf16* k_tile, int warp, int lane, Load load,
                                                float (&lse_log2)[2]) {
  const float scale_log2 = p.scale * kLog2E;
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  load(0);
  CommitCopies();
  for (int i = 0; i < tiles.tiles; ++i) {
    if (i + 1 < tiles.tiles) load(i + 1);
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();
    const KeyTile tile = TileAt<Kind::kCompressed>(p, tiles, i);
    Rows16<kKeyTile> logits;
    WarpByRow<kD, kKeyTile>(logits, q_tile, k_tile + (i & 1) * kKeyTile * kD, warp, lane);
    float top[2] = {-INFINITY, -INFINITY};
    ForEachLogit(tile, lane, [&](int n, int e, int row, int key) {
      logits[n][e] =
          rows[row].valid && Sees(tile, rows[row], key) ? logits[n][e] * scale_log2 : -INFINITY;
      top[row] = fmaxf(top[row], logits[n][e]);
    });
    float reference[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float seen = fmaxf(maximum[row], QuadMax(top[row]));
      reference[row] = seen == -INFINITY ? 0.0f : seen;
      sum[row] *= Exp2(maximum[row] - reference[row]);
      maximum[row] = seen;
    }
    ForEachLogit(tile, lane, [&](int n, int e, int row, int) {
      sum[row] += Exp2(logits[n][e] - reference[row]);
    });
    __syncthreads();
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float total = QuadSum(sum[row]);
    lse_log2[row] = total > 0 ? maximum[row] + log2f(total) : INFINITY;
  }
}

// Softmax of a warp's 16 rows of logits, to shared memory.
__device__ __forceinline__ void StoreProbabilities(const Rows16<kKeyTile>& logits,
                                                   const KeyTile& tile, const Row (&rows)[2],
                                                   const float (&lse_log2)[2], float scale_log2,
                                                   int warp, int lane, float* probabilities) {
  const bool inside = Inside(tile, rows);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // A row behind the last has lse = +inf, against which every probability is 0.
    float* to = probabilities + (warp * 16 + lane / 4 + 8 * i) * kProbabilityStride;
#pragma unroll
    for (int n = 0; n < kKeyTile / 8; ++n) {
      const int column = n * 8 + 2 * (lane & 3), key = tile.begin + column;
      float2 p = {Exp2(fmaf(logits[n][2 * i], scale_log2, -lse_log2[i])),
                  Exp2(fmaf(logits[n][2 * i + 1], scale_log2, -lse_log2[i]))};
      if (!inside) {
        if (!Sees(tile, rows[i], key)) p.x = 0;
        if (!Sees(tile, rows[i], key + 1)) p.y = 0;
      }
      *reinterpret_cast<float2*>(to + column) = p;
    }
  }
}

// head_sums[query, key] = Σ over the query's h rows; four keys a thread.
__device__ __forceinline__ void SumHeads(const float* probabilities, int queries, int h,
                                         float* head_sums) {
  constexpr int kQuads = kKeyTile / 4;
  for (int item = threadIdx.x; item < queries * kQuads; item += blockDim.x) {
    const int query = item / kQuads, quad = item % kQuads * 4;
    const float* from = probabilities + query * h * kProbabilityStride + quad;
    float4 sum = {0, 0, 0, 0};
    for (int a = 0; a < h; ++a) {
      const float4 p = *reinterpret_cast<const float4*>(from + a * kProbabilityStride);
      sum.x += p.x, sum.y += p.y, sum.z += p.z, sum.w += p.w;
    }
    *reinterpret_cast<float4*>(head_sums + query * kKeyTile + quad) = sum;
  }
}

// Adds what the tile's keys give to the selection blocks that they touch. A thread keeps its block
// and goes through the queries.
__device__ __forceinline__ void AddScores(const AttentionProblem& p, const KeyTile& tile,
                                          const float* head_sums, int queries, float* scores) {
  const int from = tile.begin * p.d / p.l_sel;
  const int to = min(((tile.end - 1) * p.d + p.l - 1) / p.l_sel, p.sel_blocks - 1);
  const int touched = to - from + 1;
  const int at_once = max(1, static_cast<int>(blockDim.x) / touched);  // queries
  for (int offset = threadIdx.x % touched; offset < touched; offset += blockDim.x) {
    const int first_query = threadIdx.x / touched;
    if (first_query >= at_once) break;
    const int j = from + offset, begin = j * p.l_sel, end = begin + p.l_sel;
    const int first_key = max(tile.begin, begin < p.l ? 0 : (begin - p.l) / p.d + 1);
    const int last_key = min(tile.end - 1, (end - 1) / p.d);
    const float share = 1.0f / p.l;
    for (int query = first_query; query < queries; query += at_once) {
      const float* sums = head_sums + query * kKeyTile - tile.begin;
      float sum = scores[query * p.sel_blocks + j];
      for (int key = first_key; key <= last_key; ++key) {
        const int overlap = min(end, key * p.d + p.l) - max(begin, key * p.d);
        sum = fmaf(sums[key], static_cast<float>(overlap) * share, sum);
      }
      scores[query * p.sel_blocks + j] = sum;
    }
  }
}

template <int kD>
__global__ void __launch_bounds__(256)
    SelectBlocksKernel(AttentionProblem p, SelectOutputs out, int queries_per_tile,
                       int tiles_per_sequence) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int tile_id = tiles_per_sequence - 1 - blockIdx.x % tiles_per_sequence;
  const int bg = blockIdx.x / tiles_per_sequence;
  const int b = bg / p.groups, g = bg % p.groups;
  const int t0 = tile_id * queries_per_tile;
  const int queries = min(queries_per_tile, p.seq_len - t0);
  const int rows_padded = warps * 16;

  extern __shared__ __align__(128) uint8_t shared[];
  bf16* q_tile = reinterpret_cast<bf16*>(shared);
  bf16* k_tile = q_tile + rows_padded * kD;
  float* probabilities = reinterpret_cast<float*>(k_tile + 2 * kKeyTile * kD);
  float* head_sums = probabilities + rows_padded * kProbabilityStride;
  float* scores = head_sums + queries_per_tile * kKeyTile;
  int* ids = reinterpret_cast<int*>(scores + queries_per_tile * p.sel_blocks) + warp * kMaxSelected;

  bool all_fit = out.scores == nullptr;
  for (int query = 0; query < queries; ++query) {
    const int t = t0 + query;
    all_fit = all_fit && t / p.l_sel - FirstBlock(p, b, t) + 1 <= p.n_sel;
  }
  for (int i = threadIdx.x; i < queries * p.sel_blocks; i += blockDim.x) scores[i] = 0;
  const KeyTiles tiles =
      PlanKeyTiles<Kind::kCompressed>(p, b, g, t0, queries, queries_per_tile, nullptr);
  if (!all_fit && tiles.tiles > 0) {
    LoadQueryTile<kD>(q_tile, p.q, p.dk, p, b, g, t0, queries, rows_padded);
    auto load = [&](int i) {
      const KeyTile tile = TileAt<Kind::kCompressed>(p, tiles, i);
      LoadKeyTile<kD>(k_tile + (i & 1) * kKeyTile * kD, p.k, p.dk, p, b, g, tile.begin, tile.end);
    };
    const Row rows[2] = {RowAt<Kind::kCompressed>(p, b, g, t0, queries, warp * 16 + lane / 4),
                         RowAt<Kind::kCompressed>(p, b, g, t0, queries, warp * 16 + lane / 4 + 8)};
    const float scale_log2 = p.scale * kLog2E;
    float lse_log2[2] = {INFINITY, INFINITY};
    if (out.lse == nullptr) {
      DenominatorPass<kD>(tiles, p, rows, q_tile, k_tile, warp, lane, load, lse_log2);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (rows[i].valid) lse_log2[i] = out.lse[rows[i].at] * kLog2E;
      }
    }
    load(0);
    CommitCopies();
    for (int i = 0; i < tiles.tiles; ++i) {
      if (i + 1 < tiles.tiles) load(i + 1);
      CommitCopies();
      WaitCopies<1>();
      __syncthreads();
      const KeyTile tile = TileAt<Kind::kCompressed>(p, tiles, i);
      Rows16<kKeyTile> logits;
      WarpByRow<kD, kKeyTile>(logits, q_tile, k_tile + (i & 1) * kKeyTile * kD, warp, lane);
      StoreProbabilities(logits, tile, rows, lse_log2, scale_log2, warp, lane, probabilities);
      __syncthreads();
      SumHeads(probabilities, queries, p.h, head_sums);
      __syncthreads();
      AddScores(p, tile, head_sums, queries, scores);
      __syncthreads();
    }
    WaitCopies<0>();
  }
  __syncthreads();
  for (int query = warp; query < queries; query += warps) {
    const int t = t0 + query;
    const int64_t row = (int64_t{1} * b * p.seq_len + t) * p.groups + g;
    float* mine = scores + query * p.sel_blocks;
    if (out.scores != nullptr) {
      for (int j = lane; j < p.sel_blocks; j += kWarp) out.scores[row * p.sel_blocks + j] = mine[j];
    }
    auto* ranks = reinterpret_cast<uint32_t*>(mine);
    for (int j = lane; j < p.sel_blocks; j += kWarp) ranks[j] = Rank(mine[j]);
    __syncwarp();
    ChooseRow(FirstBlock(p, b, t), t / p.l_sel, p.n_sel, ranks, ids, out.blocks + row * p.n_sel);
  }
}

// The choice alone. One warp a (token, group) row; scores are copied to shared memory first.
__global__ void ChooseBlocksKernel(AttentionProblem p, const float* scores, int* blocks) {
  extern __shared__ uint32_t choice[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int64_t row = int64_t{1} * blockIdx.x * warps + warp;
  if (row >= int64_t{1} * p.batch * p.seq_len * p.groups) return;
  uint32_t* ranks = choice + warp * (p.sel_blocks + kMaxSelected);
  for (int j = lane; j < p.sel_blocks; j += kWarp) ranks[j] = Rank(scores[row * p.sel_blocks + j]);
  __syncwarp();
  const int t = static_cast<int>(row / p.groups % p.seq_len);
  const int b = static_cast<int>(row / p.groups / p.seq_len);
  ChooseRow(FirstBlock(p, b, t), t / p.l_sel, p.n_sel, ranks,
            reinterpret_cast<int*>(ranks + p.sel_blocks), blocks + row * p.n_sel);
}

// Tokens a tile: up to 128 rows, fewer where a token's scores are long or the tile would take more
// shared memory than every GPU has (163 KiB on sm_80).
int SelectQueries(const NsaShape& shape) {
  constexpr int kMaxBytes = 160 << 10;
  const int h = shape.heads_per_group(), sel_blocks = shape.sel_blocks();
  const auto bytes = [&](int queries) {
    return SelectSharedBytes(shape.d_k, RoundUp(queries * h, 16), queries, sel_blocks);
  };
  int queries = 1;
  while (2 * queries * h <= 128 && queries < 32) queries *= 2;
  while (queries > 1 && (4 * queries * sel_blocks > kMaxScoreBytes || bytes(queries) > kMaxBytes)) {
    queries /= 2;
  }
  return queries;
}

}  // namespace

absl::Status SelectBlocks(const Exec& exec, const SelectBlocksArgs& args) {
  const NsaShape& shape = args.shape;
  struct {
    const NsaShape& shape;
    float scale;
    ConstTensor q, k, v, doc_start;
  } common{shape, args.scale, args.q, args.k, {}, args.doc_start};
  const AttentionProblem p = ProblemOf(common, shape.cmp_blocks());
  const SelectOutputs out{DataOf<float>(args.lse), DataOf<int>(args.blocks),
                          DataOf<float>(args.scores)};
  const int queries = SelectQueries(shape), tiles = CeilDiv(shape.seq_len, queries);
  const int threads = CeilDiv(queries * p.h, 16) * kWarp;
  // Only dk matters here; v is not read.
  NsaShape width = shape;
  width.d_v = width.d_k;
  return ForHeadWidth(width, [&](auto d) -> absl::Status {
    constexpr int kD = decltype(d)::value;
    auto* kernel = SelectBlocksKernel<kD>;
    const int bytes = SelectSharedBytes(kD, threads / 2, queries, p.sel_blocks);
    NSA_RETURN_IF_ERROR(AllowShared(kernel, bytes, "select_blocks"));
    kernel<<<tiles * p.batch * p.groups, threads, bytes, StreamOf(exec)>>>(p, out, queries, tiles);
    return CheckLaunch("select_blocks");
  });
}

absl::Status ChooseBlocks(const Exec& exec, const ChooseBlocksArgs& args) {
  const NsaShape& shape = args.shape;
  AttentionProblem p{};
  p.batch = shape.batch, p.seq_len = shape.seq_len, p.groups = shape.n_kv_groups;
  p.l_sel = shape.l_sel, p.n_sel = shape.n_sel, p.sel_blocks = shape.sel_blocks();
  p.doc_start = DataOf<int>(args.doc_start);
  const int64_t rows = int64_t{1} * shape.batch * shape.seq_len * shape.n_kv_groups;
  const int row_bytes = 4 * (p.sel_blocks + kMaxSelected);
  const int warps = std::max(1, std::min(4, (kMaxScoreBytes * 2) / row_bytes));
  NSA_RETURN_IF_ERROR(AllowShared(ChooseBlocksKernel, warps * row_bytes, "choose_blocks"));
  ChooseBlocksKernel<<<CeilDiv64(rows, warps), warps * kWarp, warps * row_bytes, StreamOf(exec)>>>(
      p, DataOf<float>(args.scores), DataOf<int>(args.blocks));
  return CheckLaunch("choose_blocks");
}

}  // namespace nsa::cuda
