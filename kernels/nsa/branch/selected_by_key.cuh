// The selected branch where a token chooses few of many blocks: forward and dq by key block.
//
// In this case neighbouring tokens share hardly any blocks, so a query tile that iterates over the
// union of its tokens' choices mostly computes products that only one token needs. Here the kernel
// instead takes 64 keys of a block and gathers the rows that chose the block (selected_lists.cuh).
// Each row writes one partial result per choice, in bf16: the unnormalised output with its maximum
// and sum in forward, a term of dq in backward. A second kernel adds the partial results of a row
// in the order of its choices, so the bits do not depend on how the work is divided.
//
// Partial results take n times the memory of the final result. They are kept for one range of
// tokens at a time, whose size common/nsa/attention_scratch.h decides. Both kernels run once per
// range of tokens.
#pragma once

#include "kernels/nsa/branch/attention_launch.cuh"
#include "kernels/nsa/branch/selected_items.cuh"

namespace nsa::cuda {

constexpr int kByKeyThreads = kDkvThreads;
constexpr int kByKeyRows = kGroupRows;  // per tile

// The layout of a thread block's shared memory.
template <int kD, bool kGradient>
struct ByKeyShared {
  static constexpr int kTile = kByKeyRows * kD;
  static constexpr int kBytes = 4 * (kKeyTile + (kGradient ? 2 : 1) * kByKeyRows) * kD +
                                2 * static_cast<int>(sizeof(RowInfo<kByKeyRows>)) + 8 * kItemTokens;

  bf16 *k, *v;                // one tile each
  bf16* q;                    // two tiles of query rows
  bf16* d_o;                  // the same; gradient only
  RowInfo<kByKeyRows>* info;  // of the two tiles
  int *tokens, *choices;      // [kItemTokens], of the item's entries

  __device__ __forceinline__ explicit ByKeyShared(uint8_t* memory)
      : k(reinterpret_cast<bf16*>(memory)),
        v(k + kKeyTile * kD),
        q(v + kKeyTile * kD),
        d_o(q + 2 * kTile),
        info(reinterpret_cast<RowInfo<kByKeyRows>*>(kGradient ? d_o + 2 * kTile : d_o)),
        tokens(reinterpret_cast<int*>(info + 2)),
        choices(tokens + kItemTokens) {}
};

// The work of a thread block: the tokens of an item against 64 keys of its block.
struct ByKeyItem {
  int b, g, block, part;
  int first, count;  // entries of the (batch, group)'s lists
  KeyTile keys;
};

// Sets `item` to the work of this thread block. False if there is none.
__device__ __forceinline__ bool FindItem(const AttentionProblem& p, const ByKey& work, int range,
                                         ByKeyItem* item) {
  const int pairs = p.batch * p.groups;
  const int bg = blockIdx.x / work.parts % pairs, index = blockIdx.x / work.parts / pairs;
  const int4 found = work.items[(int64_t{1} * range * pairs + bg) * work.capacity + index];
  if (index >= work.counts[range * pairs + bg]) return false;
  item->b = bg / p.groups, item->g = bg % p.groups;
  item->block = found.x, item->part = blockIdx.x % work.parts;
  item->keys.begin = item->block * p.l_sel + item->part * kKeyTile;
  item->keys.end = min(min(item->keys.begin + kKeyTile, (item->block + 1) * p.l_sel), p.seq_len);
  item->keys.takers = 0xffffffffu;
  if (item->keys.begin >= item->keys.end) return false;
  item->first = found.y, item->count = found.z;
  return true;
}

// Starts the copies of an item's keys and values, and reads its entries.
template <int kD, bool kGradient>
__device__ __forceinline__ void LoadItem(const ByKeyShared<kD, kGradient>& shared,
                                         const AttentionProblem& p, const SelectedLists& lists,
                                         const ByKeyItem& item) {
  LoadKeyTile<kD>(shared.k, p.k, p.dk, p, item.b, item.g, item.keys.begin, item.keys.end);
  LoadKeyTile<kD>(shared.v, p.v, p.dv, p, item.b, item.g, item.keys.begin, item.keys.end);
  const int bg = item.b * p.groups + item.g;
  const int* entries = lists.entries + int64_t{1} * bg * lists.capacity;
  for (int i = threadIdx.x; i < item.count; i += kByKeyThreads) {
    shared.tokens[i] = TokenOf(entries[item.first + i]);
    shared.choices[i] = ChoiceOf(entries[item.first + i]);
  }
}

// Turns a thread's logits of its row `e` into exponentials relative to the row's maximum. Returns
// the maximum (log2 units) and the sum of the exponentials; −inf and 0 for a row that sees no key.
__device__ __forceinline__ float2 Exponentials(Rows16<kKeyTile>& logits, int e, float scale_log2) {
  float top = -INFINITY;
#pragma unroll
  for (int n = 0; n < kKeyTile / 8; ++n) {
    top = fmaxf(top, fmaxf(logits[n][2 * e], logits[n][2 * e + 1]));
  }
  top = QuadMax(top) * scale_log2;
  const float reference = top == -INFINITY ? 0.0f : top;
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
    for (int i = 2 * e; i < 2 * e + 2; ++i) {
      logits[n][i] = Exp2(fmaf(logits[n][i], scale_log2, -reference));
      sum += logits[n][i];
    }
  }
  return {top, QuadSum(sum)};
}

// The two rows that a thread holds of the query tile whose first token is entry `from` of the item.
// Row::at is the row's place among the partial rows.
template <int kD, bool kGradient>
__device__ __forceinline__ void FindRows(Row (&rows)[2], const ByKeyShared<kD, kGradient>& shared,
                                         const AttentionProblem& p, const ByKey& work, int range,
                                         const ByKeyItem& item, int from, int queries,
                                         const RowInfo<kByKeyRows>& info, int warp, int lane) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = warp * 16 + lane / 4 + 8 * e;
    const int2 seen = info.keys[row];
    const int query = QueryOf(p, row), head = row - query * p.h;
    rows[e].valid = query < queries;
    rows[e].lo = seen.x;
    rows[e].hi = seen.x + seen.y;
    if (!rows[e].valid) continue;
    const int token = shared.tokens[from + query] - range * work.tokens();
    const int choice = shared.choices[from + query] * work.parts + item.part;
    rows[e].at = FirstPartialRow(p, work, item.b, item.g, token) + choice * p.h + head;
  }
}

// Number of keys that a thread's rows see, counted once for all heads of a group and all lanes of a
// row.
__device__ __forceinline__ unsigned int CountKeys(const AttentionProblem& p, const KeyTile& keys,
                                                  const Row (&rows)[2], int warp, int lane) {
  unsigned int count = 0;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = warp * 16 + lane / 4 + 8 * e;
    if (row == QueryOf(p, row) * p.h && (lane & 3) == 0) count += KeysSeen(keys, rows[e]);
  }
  return count;
}

// o ← the rows' weights times V. Stores the maximum and the sum of the weights.
template <int kD>
__device__ __forceinline__ void PartialOutputs(Rows16<kD>& o, const ByKeyShared<kD, false>& shared,
                                               const bf16* q, const KeyTile& keys,
                                               const Row (&rows)[2], float scale_log2, float2* sums,
                                               int warp, int lane) {
  Rows16<kKeyTile> weights;
  ByRow<kD, kKeyTile>(weights, q, shared.k, warp, lane);
  HideUnseen(weights, keys, rows, lane);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float2 sum = Exponentials(weights, e, scale_log2);
    if (rows[e].valid && (lane & 3) == 0) sums[rows[e].at] = sum;
  }
  Accumulate<kD, kKeyTile>(o, weights, shared.v, lane);
}

// dq ← the gradients of the rows' logits times K, without the scale.
template <int kD>
__device__ __forceinline__ void PartialDq(Rows16<kD>& dq, const ByKeyShared<kD, true>& shared,
                                          const bf16* q, const bf16* d_o,
                                          const RowInfo<kByKeyRows>& info, const KeyTile& keys,
                                          const Row (&rows)[2], float scale_log2, int warp,
                                          int lane) {
  Rows16<kKeyTile> weights, d_weights;
  const float2 stats[2] = {info.stats[warp * 16 + lane / 4], info.stats[warp * 16 + lane / 4 + 8]};
  const auto weigh = [&] {
    HideUnseen(weights, keys, rows, lane);
#pragma unroll
    for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        weights[n][e] = Exp2(fmaf(weights[n][e], scale_log2, -stats[e >> 1].x));
      }
    }
  };
  TwoByRow<kD, kKeyTile>(weights, q, shared.k, d_weights, d_o, shared.v, warp, lane, weigh);
  Accumulate<kD, kKeyTile>(dq, weights, shared.k, lane, [&](int step) {
#pragma unroll
    for (int n = 2 * step; n < 2 * step + 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) weights[n][e] *= d_weights[n][e] - stats[e >> 1].y;
    }
  });
}

// The columns of partial rows stand in the order of a thread's accumulators, so that a thread
// writes 16 bytes at a time (8 where rows are 16 wide) and the four threads of a row 64. Chunk 4j +
// c of a row has columns 8·(kTiles·j + i) + 2c and the one after it, for i = 0 … kTiles − 1.
template <int kD>
struct PartialChunk {
  static constexpr int kTiles = kD > 16 ? 4 : 2;
  static constexpr int kWidth = 2 * kTiles;   // columns
  static constexpr int kOfRow = kD / kWidth;  // chunks
  using Packed = std::conditional_t<kTiles == 4, uint4, uint2>;
};

// Writes a thread's two rows to the partial rows.
template <int kD>
__device__ __forceinline__ void StorePartialRows(const Rows16<kD>& result, const Row (&rows)[2],
                                                 bf16* partial_rows, int lane) {
  using Chunk = PartialChunk<kD>;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (!rows[e].valid) continue;
    bf16* to = partial_rows + rows[e].at * kD + (lane & 3) * Chunk::kWidth;
#pragma unroll
    for (int j = 0; j < Chunk::kOfRow / 4; ++j) {
      typename Chunk::Packed packed;
      auto* pairs = reinterpret_cast<uint32_t*>(&packed);
#pragma unroll
      for (int i = 0; i < Chunk::kTiles; ++i) {
        const float(&tile)[4] = result[j * Chunk::kTiles + i];
        pairs[i] = Pack(tile[2 * e], tile[2 * e + 1]);
      }
      *reinterpret_cast<typename Chunk::Packed*>(to + 4 * j * Chunk::kWidth) = packed;
    }
  }
}

// Thread blocks per multiprocessor, as many as fit into shared memory and registers.
template <int kD, bool kGradient>
constexpr int kByKeyBlocks = kD > 64 ? (kHasWgmma && !kGradient ? 3 : 2) : (kGradient ? 3 : 4);

// Computes the partial results of one item and part. Grid: parts · B·G · capacity.
template <int kD, bool kGradient>
__global__ void __launch_bounds__(kByKeyThreads, kByKeyBlocks<kD, kGradient>)
    SelectedByKeyKernel(AttentionProblem p, AttentionGradients grad, SelectedLists lists,
                        ByKey work, int range, unsigned long long* keys_read) {
  ByKeyItem item;
  if (!FindItem(p, work, range, &item)) return;
  extern __shared__ __align__(kTileAlignment) uint8_t memory[];
  const ByKeyShared<kD, kGradient> shared(memory);
  LoadItem(shared, p, lists, item);
  DkvWork list{};
  list.list = shared.tokens;
  list.count = item.count;
  __syncthreads();

  const RowLoader<kSel, kD, kByKeyRows, kGradient> loader(p, grad, item.b, item.g);
  const int row_tiles = CeilDiv(list.count, loader.tokens);
  auto load = [&](int i) {
    if (i < row_tiles) {
      const int stage = i & 1;
      loader.Load(p, grad, list, item.b, item.g, i * loader.tokens, shared.q + stage * shared.kTile,
                  shared.d_o + stage * shared.kTile, shared.info[stage]);
    }
    CommitCopies();
  };
  load(0);

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float scale_log2 = p.scale * kLog2E;
  unsigned int keys_seen = 0;
  for (int i = 0; i < row_tiles; ++i) {
    load(i + 1);
    WaitCopies<1>();
    FenceTiles();
    __syncthreads();
    const int stage = i & 1, from = i * loader.tokens;
    const bf16* q = shared.q + stage * shared.kTile;
    const RowInfo<kByKeyRows>& info = shared.info[stage];
    Row rows[2] = {};
    FindRows(rows, shared, p, work, range, item, from, min(loader.tokens, list.count - from), info,
             warp, lane);
    if (!kGradient && keys_read != nullptr) keys_seen += CountKeys(p, item.keys, rows, warp, lane);
    Rows16<kD> result = {};
    if constexpr (kGradient) {
      PartialDq<kD>(result, shared, q, shared.d_o + stage * shared.kTile, info, item.keys, rows,
                    scale_log2, warp, lane);
    } else {
      PartialOutputs<kD>(result, shared, q, item.keys, rows, scale_log2, work.sums, warp, lane);
    }
    StorePartialRows<kD>(result, rows, work.rows, lane);
    __syncthreads();
  }
  if (!kGradient && keys_read != nullptr) {
    keys_seen = __reduce_add_sync(0xffffffffu, keys_seen);
    // The order of an integer sum does not matter.
    if (lane == 0 && keys_seen > 0)
      atomicAdd(keys_read, static_cast<unsigned long long>(keys_seen));
  }
}

// The partial results that one thread of CombineByKeyKernel adds: a chunk of a row.
template <int kD>
struct PartialColumns {
  using Chunk = PartialChunk<kD>;

  int chunk;
  int64_t row;       // of [B, S, H]
  int slots;         // number of partial results
  const bf16* rows;  // the chunk of the first one
  const float2* sums;
  int h;  // rows and sums from one to the next

  // total += factor times the i-th partial result.
  __device__ __forceinline__ void Add(int i, float factor, float2 (&total)[Chunk::kTiles]) const {
    const auto* from =
        reinterpret_cast<const typename Chunk::Packed*>(rows + int64_t{1} * i * h * kD);
    const typename Chunk::Packed packed = __ldcs(from);
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&packed);
#pragma unroll
    for (int tile = 0; tile < Chunk::kTiles; ++tile) {
      const float2 term = __bfloat1622float2(pairs[tile]);
      total[tile].x = fmaf(factor, term.x, total[tile].x);
      total[tile].y = fmaf(factor, term.y, total[tile].y);
    }
  }

  // Calls use(pointer to two columns, value) for the columns within rows of `width` at `to`.
  template <class Use>
  __device__ __forceinline__ void Each(bf16* to, int width, const float2 (&total)[Chunk::kTiles],
                                       Use use) const {
#pragma unroll
    for (int tile = 0; tile < Chunk::kTiles; ++tile) {
      const int column = 8 * (chunk / 4 * Chunk::kTiles + tile) + 2 * (chunk % 4);
      if (column >= width) continue;
      use(reinterpret_cast<__nv_bfloat162*>(to + row * width + column), total[tile]);
    }
  }
};

// Sets `part` to the work of this thread. False if there is none.
template <int kD>
__device__ __forceinline__ bool FindColumns(const AttentionProblem& p, const ByKey& work, int range,
                                            PartialColumns<kD>* part) {
  constexpr int kLanes = PartialChunk<kD>::kOfRow;
  const int64_t thread = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  part->chunk = static_cast<int>(thread % kLanes);
  const int head = static_cast<int>(thread / kLanes % p.heads);
  const int t0 = range * work.tokens(), tokens = min(work.tokens(), p.seq_len - t0);
  const auto token = static_cast<int>(thread / kLanes / p.heads % tokens);
  const int64_t sequence = thread / kLanes / p.heads / tokens;
  if (sequence >= p.batch) return false;
  const int b = static_cast<int>(sequence), t = t0 + token, g = head / p.h;
  part->row = (int64_t{1} * b * p.seq_len + t) * p.heads + head;
  const int* choices = p.blocks + ((int64_t{1} * b * p.seq_len + t) * p.groups + g) * p.n_sel;
  // Parts of a block that begin after t have no partial result.
  int last = p.n_sel - 1;
  while (last > 0 && choices[last] < 0) --last;
  part->slots =
      choices[last] < 0
          ? 0
          : last * work.parts + min(work.parts, (t - choices[last] * p.l_sel) / kKeyTile + 1);
  const int64_t first = FirstPartialRow(p, work, b, g, token) + head - g * p.h;
  part->rows = work.rows + first * kD + part->chunk * PartialChunk<kD>::kWidth;
  part->sums = work.sums + first;
  part->h = p.h;
  return true;
}

// dq of the chunk: the sum of the terms.
template <int kD>
__device__ __forceinline__ void CombineDq(const PartialColumns<kD>& part, const AttentionProblem& p,
                                          const AttentionGradients& grad) {
  float2 total[PartialChunk<kD>::kTiles] = {};
#pragma unroll 8
  for (int i = 0; i < part.slots; ++i) part.Add(i, 1, total);
  part.Each(grad.dq, p.dk, total, [&](__nv_bfloat162* to, float2 value) {
    const float2 old = grad.add_to_dq ? __bfloat1622float2(*to) : float2{0, 0};
    *to = __floats2bfloat162_rn(fmaf(value.x, p.scale, old.x), fmaf(value.y, p.scale, old.y));
  });
}

// The output's chunk: the terms relative to one maximum, divided by the sum of the weights.
template <int kD>
__device__ __forceinline__ void CombineOutputs(const PartialColumns<kD>& part,
                                               const AttentionProblem& p,
                                               const AttentionOutputs& out) {
  float top = -INFINITY;
  for (int i = 0; i < part.slots; ++i) top = fmaxf(top, part.sums[i * part.h].x);
  const float reference = top == -INFINITY ? 0.0f : top;
  float sum = 0;
  float2 total[PartialChunk<kD>::kTiles] = {};
#pragma unroll 8
  for (int i = 0; i < part.slots; ++i) {
    const float2 weight = part.sums[i * part.h];
    const float factor = Exp2(weight.x - reference);
    sum = fmaf(factor, weight.y, sum);
    part.Add(i, factor, total);
  }
  const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
  part.Each(out.o, p.dv, total, [&](__nv_bfloat162* to, float2 value) {
    *to = __floats2bfloat162_rn(value.x * inverse, value.y * inverse);
  });
  if (part.chunk == 0) out.lse[part.row] = sum > 0 ? (top + log2f(sum)) * kLn2 : INFINITY;
}

// Adds the partial results of a range's rows, one chunk per thread.
template <int kD, bool kGradient>
__global__ void CombineByKeyKernel(AttentionProblem p, AttentionOutputs out,
                                   AttentionGradients grad, ByKey work, int range) {
  PartialColumns<kD> part;
  if (!FindColumns(p, work, range, &part)) return;
  if constexpr (kGradient) {
    CombineDq(part, p, grad);
  } else {
    CombineOutputs(part, p, out);
  }
}

// Runs forward (kGradient false, writes `out`) or dq (kGradient true, writes `grad`) for all
// ranges. The lists must have been built.
template <bool kGradient>
absl::Status RunByKey(const Exec& exec, const NsaShape& shape, const AttentionProblem& p,
                      const AttentionOutputs& out, const AttentionGradients& grad,
                      const SelectedLists& lists, const ByKey& work, const char* what) {
  const int pairs = p.batch * p.groups;
  PlanItemsKernel<<<work.ranges * pairs, kWarp, 0, StreamOf(exec)>>>(p, lists, work);
  NSA_RETURN_IF_ERROR(CheckLaunch(what));
  return ForHeadWidth(shape, [&](auto head_width) -> absl::Status {
    constexpr int kD = decltype(head_width)::value;
    auto* kernel = SelectedByKeyKernel<kD, kGradient>;
    constexpr int kShared = ByKeyShared<kD, kGradient>::kBytes;
    NSA_RETURN_IF_ERROR(AllowShared(kernel, kShared, what));
    for (int range = 0; range < work.ranges; ++range) {
      kernel<<<work.parts * pairs * work.capacity, kByKeyThreads, kShared, StreamOf(exec)>>>(
          p, grad, lists, work, range, out.keys_read);
      const int tokens = std::min(work.tokens(), p.seq_len - range * work.tokens());
      const int64_t threads = int64_t{1} * p.batch * tokens * p.heads * PartialChunk<kD>::kOfRow;
      CombineByKeyKernel<kD, kGradient>
          <<<GridFor(threads, 256), 256, 0, StreamOf(exec)>>>(p, out, grad, work, range);
      NSA_RETURN_IF_ERROR(CheckLaunch(what));
    }
    return absl::OkStatus();
  });
}

}  // namespace nsa::cuda
