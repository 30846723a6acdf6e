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
#include "kernels/nsa/branch/selected_lists.cuh"

namespace nsa::cuda {

// How the work is divided, and the device memory for it. An item is a segment of the tokens that
// chose a block within a range of tokens.
struct ByKey {
  int chunks;    // of kChunk tokens, per range
  int ranges;    // per sequence
  int parts;     // 64-key parts per block
  int capacity;  // most items of a (range, batch, group)
  int* counts;   // [ranges, B·G]: number of items
  int2* items;   // [ranges, B·G, capacity]: block, segment of its tokens within the range
  float* rows;   // [B, tokens of a range, G, n · parts, h, max(dk, dv)]: partial results
  float2* sums;  // [B, tokens of a range, G, n · parts, h]: maximum (log2 units) and sum; forward
                 // only

  __host__ __device__ int tokens() const { return chunks * kChunk; }
};

constexpr int kItemTokens = SelectedScratch::kItemTokens;  // most tokens of an item

// The entries [x, y) of a block's list whose tokens are within a range.
__device__ __forceinline__ int2 EntriesOf(const AttentionProblem& p, const SelectedLists& lists,
                                          const ByKey& work, int range, int bg, int block) {
  const int* starts = lists.counts + int64_t{1} * bg * lists.chunks * p.sel_blocks + block;
  const int first = range * work.chunks, last = first + work.chunks;
  return {starts[int64_t{1} * first * p.sel_blocks], last < lists.chunks
                                                         ? starts[int64_t{1} * last * p.sel_blocks]
                                                         : lists.sizes[bg * p.sel_blocks + block]};
}

// Lists the items of every range: one warp per (range, batch, group).
static __global__ void PlanItemsKernel(AttentionProblem p, SelectedLists lists, ByKey work) {
  const int pairs = p.batch * p.groups, lane = threadIdx.x;
  const int range = blockIdx.x / pairs, bg = blockIdx.x % pairs;
  int2* items = work.items + int64_t{1} * blockIdx.x * work.capacity;
  int before = 0;
  for (int base = 0; base < p.sel_blocks; base += kWarp) {
    const int block = base + lane;
    int count = 0;
    if (block < p.sel_blocks) {
      const int2 entries = EntriesOf(p, lists, work, range, bg, block);
      count = CeilDiv(entries.y - entries.x, kItemTokens);
    }
    int sum = count;
    for (int offset = 1; offset < kWarp; offset <<= 1) {
      const int other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    for (int i = 0; i < count; ++i) items[before + sum - count + i] = {block, i};
    before += __shfl_sync(0xffffffffu, sum, kWarp - 1);
  }
  if (lane == 0) work.counts[blockIdx.x] = before;
}

constexpr int kByKeyThreads = kDkvThreads;
constexpr int kByKeyRows = kGroupRows;  // per tile

template <int kD, bool kGradient>
__host__ __device__ constexpr int ByKeySharedBytes() {
  return 4 * (kKeyTile + (kGradient ? 2 : 1) * kByKeyRows) * kD +
         2 * static_cast<int>(sizeof(RowInfo<kByKeyRows>)) + 8 * kItemTokens;
}

// The partial row of head 0, choice 0, part 0 of a (token, group) pair.
__device__ __forceinline__ int64_t FirstPartialRow(const AttentionProblem& p, const ByKey& work,
                                                   int b, int g, int token_in_range) {
  return ((int64_t{1} * b * work.tokens() + token_in_range) * p.groups + g) * p.n_sel * work.parts *
         p.h;
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

// Computes the partial results of one item and part. Grid: parts · B·G · capacity.
template <int kD, bool kGradient>
__global__ void __launch_bounds__(kByKeyThreads, kD > 64     ? 2
                                                 : kGradient ? 3
                                                             : 4)
    SelectedByKeyKernel(AttentionProblem p, AttentionGradients grad, SelectedLists lists,
                        ByKey work, int range, unsigned long long* keys_read) {
  const int pairs = p.batch * p.groups;
  const int part = blockIdx.x % work.parts;
  const int bg = blockIdx.x / work.parts % pairs, index = blockIdx.x / work.parts / pairs;
  if (index >= work.counts[range * pairs + bg]) return;
  const int2 item = work.items[(int64_t{1} * range * pairs + bg) * work.capacity + index];
  const int b = bg / p.groups, g = bg % p.groups, block = item.x;
  KeyTile keys{};
  keys.begin = block * p.l_sel + part * kKeyTile;
  keys.end = min(min(keys.begin + kKeyTile, (block + 1) * p.l_sel), p.seq_len);
  keys.takers = 0xffffffffu;
  if (keys.begin >= keys.end) return;
  const int2 all = EntriesOf(p, lists, work, range, bg, block);
  const int first = all.x + item.y * kItemTokens;

  extern __shared__ __align__(kTileAlignment) uint8_t shared[];
  bf16* k_tile = reinterpret_cast<bf16*>(shared);
  bf16* v_tile = k_tile + kKeyTile * kD;
  bf16* q_tile = v_tile + kKeyTile * kD;
  bf16* do_tile = q_tile + 2 * kByKeyRows * kD;
  auto* info =
      reinterpret_cast<RowInfo<kByKeyRows>*>(kGradient ? do_tile + 2 * kByKeyRows * kD : do_tile);
  int* tokens = reinterpret_cast<int*>(info + 2);
  int* choices = tokens + kItemTokens;

  LoadKeyTile<kD>(k_tile, p.k, p.dk, p, b, g, keys.begin, keys.end);
  LoadKeyTile<kD>(v_tile, p.v, p.dv, p, b, g, keys.begin, keys.end);
  DkvWork list{};
  list.list = tokens;
  list.count = min(kItemTokens, all.y - first);
  const int* entries =
      lists.entries + int64_t{1} * bg * lists.capacity + lists.begins[bg * p.sel_blocks + block];
  for (int i = threadIdx.x; i < list.count; i += kByKeyThreads) {
    tokens[i] = TokenOf(entries[first + i]);
    choices[i] = ChoiceOf(entries[first + i]);
  }
  __syncthreads();

  const RowLoader<kSel, kD, kByKeyRows, kGradient> loader(p, grad, b, g);
  const int row_tiles = CeilDiv(list.count, loader.tokens);
  auto load = [&](int i) {
    if (i < row_tiles) {
      const int stage = i & 1;
      loader.Load(p, grad, list, b, g, i * loader.tokens, q_tile + stage * kByKeyRows * kD,
                  do_tile + stage * kByKeyRows * kD, info[stage]);
    }
    CommitCopies();
  };
  load(0);

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float scale_log2 = p.scale * kLog2E;
  const int t0 = range * work.tokens();
  unsigned int keys_seen = 0;
  for (int i = 0; i < row_tiles; ++i) {
    load(i + 1);
    WaitCopies<1>();
    FenceTiles();
    __syncthreads();
    const int stage = i & 1, from = i * loader.tokens;
    const bf16* q = q_tile + stage * kByKeyRows * kD;
    Row rows[2] = {};
    int64_t at[2] = {};  // the rows' places among the partial rows
    const int queries = min(loader.tokens, list.count - from);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = warp * 16 + lane / 4 + 8 * e;
      const int2 seen = info[stage].keys[row];
      const int query = QueryOf(p, row), head = row - query * p.h;
      rows[e].valid = query < queries;
      rows[e].lo = seen.x;
      rows[e].hi = seen.x + seen.y;
      if (!rows[e].valid) continue;
      const int choice = choices[from + query] * work.parts + part;
      at[e] = FirstPartialRow(p, work, b, g, tokens[from + query] - t0) + choice * p.h + head;
      if (!kGradient && keys_read != nullptr && head == 0 && (lane & 3) == 0) {
        keys_seen += KeysSeen(keys, rows[e]);
      }
    }
    Rows16<kKeyTile> weights;
    Rows16<kD> result = {};
    if constexpr (kGradient) {
      Rows16<kKeyTile> d_weights;
      const float2 stats[2] = {info[stage].stats[warp * 16 + lane / 4],
                               info[stage].stats[warp * 16 + lane / 4 + 8]};
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
      TwoByRow<kD, kKeyTile>(weights, q, k_tile, d_weights, do_tile + stage * kByKeyRows * kD,
                             v_tile, warp, lane, weigh);
      Accumulate<kD, kKeyTile>(result, weights, k_tile, lane, [&](int step) {
#pragma unroll
        for (int n = 2 * step; n < 2 * step + 2; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) weights[n][e] *= d_weights[n][e] - stats[e >> 1].y;
        }
      });
    } else {
      ByRow<kD, kKeyTile>(weights, q, k_tile, warp, lane);
      HideUnseen(weights, keys, rows, lane);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float2 sum = Exponentials(weights, e, scale_log2);
        if (rows[e].valid && (lane & 3) == 0) work.sums[at[e]] = sum;
      }
      Accumulate<kD, kKeyTile>(result, weights, v_tile, lane);
    }
    const int width = kGradient ? p.dk : p.dv;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (!rows[e].valid) continue;
      float* to = work.rows + at[e] * width + 2 * (lane & 3);
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
    __syncthreads();
  }
  if (!kGradient && keys_read != nullptr) {
    keys_seen = __reduce_add_sync(0xffffffffu, keys_seen);
    // The order of an integer sum does not matter.
    if (lane == 0 && keys_seen > 0)
      atomicAdd(keys_read, static_cast<unsigned long long>(keys_seen));
  }
}

// Adds the partial results of a range's rows, 4 columns per thread.
template <bool kGradient>
__global__ void CombineByKeyKernel(AttentionProblem p, AttentionOutputs out,
                                   AttentionGradients grad, ByKey work, int range) {
  const int width = kGradient ? p.dk : p.dv, lanes = width / 4;
  const int64_t thread = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  const int column = static_cast<int>(thread % lanes) * 4;
  const int head = static_cast<int>(thread / lanes % p.heads);
  const int t0 = range * work.tokens(), tokens = min(work.tokens(), p.seq_len - t0);
  const auto token = static_cast<int>(thread / lanes / p.heads % tokens);
  const int64_t sequence = thread / lanes / p.heads / tokens;
  if (sequence >= p.batch) return;
  const int b = static_cast<int>(sequence), t = t0 + token, g = head / p.h;
  const int64_t row = (int64_t{1} * b * p.seq_len + t) * p.heads + head;
  const int* choices = p.blocks + ((int64_t{1} * b * p.seq_len + t) * p.groups + g) * p.n_sel;
  // The number of partial results of the row: parts of a block that begin after t have none.
  int last = p.n_sel - 1;
  while (last > 0 && choices[last] < 0) --last;
  const int slots =
      choices[last] < 0
          ? 0
          : last * work.parts + min(work.parts, (t - choices[last] * p.l_sel) / kKeyTile + 1);
  const int64_t first = FirstPartialRow(p, work, b, g, token) + head - g * p.h;
  const float* rows = work.rows + first * width + column;
  const int64_t step = int64_t{1} * p.h * width;
  float4 total = {0, 0, 0, 0};
  if constexpr (kGradient) {
#pragma unroll 8
    for (int i = 0; i < slots; ++i) {
      const float4 term = __ldcs(reinterpret_cast<const float4*>(rows + i * step));
      total.x += term.x, total.y += term.y, total.z += term.z, total.w += term.w;
    }
    auto* to = reinterpret_cast<uint2*>(grad.dq + row * p.dk + column);
    float4 old = {0, 0, 0, 0};
    if (grad.add_to_dq) {
      const uint2 packed = *to;
      const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(packed.x));
      const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(packed.y));
      old = {low.x, low.y, high.x, high.y};
    }
    *to = {Pack(fmaf(total.x, p.scale, old.x), fmaf(total.y, p.scale, old.y)),
           Pack(fmaf(total.z, p.scale, old.z), fmaf(total.w, p.scale, old.w))};
  } else {
    const float2* sums = work.sums + first;
    float top = -INFINITY;
    for (int i = 0; i < slots; ++i) top = fmaxf(top, sums[i * p.h].x);
    const float reference = top == -INFINITY ? 0.0f : top;
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < slots; ++i) {
      const float2 part = sums[i * p.h];
      const float4 term = __ldcs(reinterpret_cast<const float4*>(rows + i * step));
      const float factor = Exp2(part.x - reference);
      sum = fmaf(factor, part.y, sum);
      total.x = fmaf(factor, term.x, total.x), total.y = fmaf(factor, term.y, total.y);
      total.z = fmaf(factor, term.z, total.z), total.w = fmaf(factor, term.w, total.w);
    }
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
    *reinterpret_cast<uint2*>(out.o + row * p.dv + column) = {
        Pack(total.x * inverse, total.y * inverse), Pack(total.z * inverse, total.w * inverse)};
    if (column == 0) out.lse[row] = sum > 0 ? (top + log2f(sum)) * kLn2 : INFINITY;
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
    constexpr int kShared = ByKeySharedBytes<kD, kGradient>();
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
