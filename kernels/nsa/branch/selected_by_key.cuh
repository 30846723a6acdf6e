// The selected branch where a token chooses few of many blocks: forward and dq by key block.
//
// In this case neighbouring tokens share hardly any blocks, so a query tile that iterates over the
// union of its tokens' choices mostly computes products that only one token needs. Here the kernel
// instead takes 64 keys of a block and gathers the rows that chose the block (selected_lists.cuh).
// Each row writes one partial result per choice: the unnormalised output with its maximum and sum
// in forward, a term of dq in backward. A second kernel adds the partial results of a row in the
// order of its choices, so the bits do not depend on how the work is divided.
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
  int first, count;  // entries of the block's list
  KeyTile keys;
};

// Sets `item` to the work of this thread block. False if there is none.
__device__ __forceinline__ bool FindItem(const AttentionProblem& p, const SelectedLists& lists,
                                         const ByKey& work, int range, ByKeyItem* item) {
  const int pairs = p.batch * p.groups;
  const int bg = blockIdx.x / work.parts % pairs, index = blockIdx.x / work.parts / pairs;
  if (index >= work.counts[range * pairs + bg]) return false;
  const int2 found = work.items[(int64_t{1} * range * pairs + bg) * work.capacity + index];
  item->b = bg / p.groups, item->g = bg % p.groups;
  item->block = found.x, item->part = blockIdx.x % work.parts;
  item->keys.begin = item->block * p.l_sel + item->part * kKeyTile;
  item->keys.end = min(min(item->keys.begin + kKeyTile, (item->block + 1) * p.l_sel), p.seq_len);
  item->keys.takers = 0xffffffffu;
  if (item->keys.begin >= item->keys.end) return false;
  const int2 all = EntriesOf(p, lists, work, range, bg, item->block);
  item->first = all.x + found.y * kItemTokens;
  item->count = min(kItemTokens, all.y - item->first);
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
  const int* entries = lists.entries + int64_t{1} * bg * lists.capacity +
                       lists.begins[bg * p.sel_blocks + item.block];
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

// Writes a thread's two rows to the partial rows, which are `width` wide.
template <int kD>
__device__ __forceinline__ void StorePartialRows(const Rows16<kD>& result, const Row (&rows)[2],
                                                 float* partial_rows, int width, int lane) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (!rows[e].valid) continue;
    float* to = partial_rows + rows[e].at * width + 2 * (lane & 3);
    const auto store = [&](int n) {
      *reinterpret_cast<float2*>(to + n * 8) = {result[n][2 * e], result[n][2 * e + 1]};
    };
    if (width == kD) {
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) store(n);
    } else {
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
        if (n * 8 < width) store(n);
      }
    }
  }
}

// Computes the partial results of one item and part. Grid: parts · B·G · capacity.
template <int kD, bool kGradient>
__global__ void __launch_bounds__(kByKeyThreads, kD > 64     ? 2
                                                 : kGradient ? 3
                                                             : 4)
    SelectedByKeyKernel(AttentionProblem p, AttentionGradients grad, SelectedLists lists,
                        ByKey work, int range, unsigned long long* keys_read) {
  ByKeyItem item;
  if (!FindItem(p, lists, work, range, &item)) return;
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
    StorePartialRows<kD>(result, rows, work.rows, kGradient ? p.dk : p.dv, lane);
    __syncthreads();
  }
  if (!kGradient && keys_read != nullptr) {
    keys_seen = __reduce_add_sync(0xffffffffu, keys_seen);
    // The order of an integer sum does not matter.
    if (lane == 0 && keys_seen > 0)
      atomicAdd(keys_read, static_cast<unsigned long long>(keys_seen));
  }
}

// The partial results that one thread of CombineByKeyKernel adds: four columns of a row.
struct PartialColumns {
  int column;         // the first of the four
  int64_t row;        // of [B, S, H]
  int slots;          // number of partial results
  const float* rows;  // columns of the first one
  int64_t step;       // floats from one to the next
  const float2* sums;
  int h;  // sums from one to the next

  __device__ __forceinline__ float4 At(int i) const {
    return __ldcs(reinterpret_cast<const float4*>(rows + i * step));
  }
};

// Sets `part` to the work of this thread. False if there is none.
__device__ __forceinline__ bool FindColumns(const AttentionProblem& p, const ByKey& work, int range,
                                            int width, PartialColumns* part) {
  const int lanes = width / 4;
  const int64_t thread = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  part->column = static_cast<int>(thread % lanes) * 4;
  const int head = static_cast<int>(thread / lanes % p.heads);
  const int t0 = range * work.tokens(), tokens = min(work.tokens(), p.seq_len - t0);
  const auto token = static_cast<int>(thread / lanes / p.heads % tokens);
  const int64_t sequence = thread / lanes / p.heads / tokens;
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
  part->rows = work.rows + first * width + part->column;
  part->step = int64_t{1} * p.h * width;
  part->sums = work.sums + first;
  part->h = p.h;
  return true;
}

// dq of the four columns: the sum of the terms.
__device__ __forceinline__ void CombineDq(const PartialColumns& part, const AttentionProblem& p,
                                          const AttentionGradients& grad) {
  float4 total = {0, 0, 0, 0};
#pragma unroll 8
  for (int i = 0; i < part.slots; ++i) {
    const float4 term = part.At(i);
    total.x += term.x, total.y += term.y, total.z += term.z, total.w += term.w;
  }
  auto* to = reinterpret_cast<uint2*>(grad.dq + part.row * p.dk + part.column);
  float4 old = {0, 0, 0, 0};
  if (grad.add_to_dq) {
    const uint2 packed = *to;
    const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(packed.x));
    const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(packed.y));
    old = {low.x, low.y, high.x, high.y};
  }
  *to = {Pack(fmaf(total.x, p.scale, old.x), fmaf(total.y, p.scale, old.y)),
         Pack(fmaf(total.z, p.scale, old.z), fmaf(total.w, p.scale, old.w))};
}

// The output's four columns: the terms relative to one maximum, divided by the sum of the weights.
__device__ __forceinline__ void CombineOutputs(const PartialColumns& part,
                                               const AttentionProblem& p,
                                               const AttentionOutputs& out) {
  float top = -INFINITY;
  for (int i = 0; i < part.slots; ++i) top = fmaxf(top, part.sums[i * part.h].x);
  const float reference = top == -INFINITY ? 0.0f : top;
  float sum = 0;
  float4 total = {0, 0, 0, 0};
#pragma unroll 8
  for (int i = 0; i < part.slots; ++i) {
    const float2 weight = part.sums[i * part.h];
    const float4 term = part.At(i);
    const float factor = Exp2(weight.x - reference);
    sum = fmaf(factor, weight.y, sum);
    total.x = fmaf(factor, term.x, total.x), total.y = fmaf(factor, term.y, total.y);
    total.z = fmaf(factor, term.z, total.z), total.w = fmaf(factor, term.w, total.w);
  }
  const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
  *reinterpret_cast<uint2*>(out.o + part.row * p.dv + part.column) = {
      Pack(total.x * inverse, total.y * inverse), Pack(total.z * inverse, total.w * inverse)};
  if (part.column == 0) out.lse[part.row] = sum > 0 ? (top + log2f(sum)) * kLn2 : INFINITY;
}

// Adds the partial results of a range's rows, four columns per thread.
template <bool kGradient>
__global__ void CombineByKeyKernel(AttentionProblem p, AttentionOutputs out,
                                   AttentionGradients grad, ByKey work, int range) {
  PartialColumns part;
  if (!FindColumns(p, work, range, kGradient ? p.dk : p.dv, &part)) return;
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
      const int64_t threads =
          int64_t{1} * p.batch * tokens * p.heads * (kGradient ? p.dk : p.dv) / 4;
      CombineByKeyKernel<kGradient>
          <<<GridFor(threads, 256), 256, 0, StreamOf(exec)>>>(p, out, grad, work, range);
      NSA_RETURN_IF_ERROR(CheckLaunch(what));
    }
    return absl::OkStatus();
  });
}

}  // namespace nsa::cuda
