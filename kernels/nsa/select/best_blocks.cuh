// Keeps the best of the blocks offered to a token, sorted across the lanes of a warp, and writes
// the resulting list of chosen blocks.
#pragma once

#include "kernels/nsa/branch/attention_tile.cuh"

namespace nsa::cuda {

constexpr int kForced = 3;  // forced blocks: the document's first, the previous, the current

__device__ __forceinline__ int FirstBlock(const AttentionProblem& p, int b, int t) {
  return p.doc_start == nullptr ? 0 : DocStart(p, b, t) / p.l_sel;
}

// Up to 64 blocks in descending order of keys. Entry i is `low_` of lane i for i < 32, else `high_`
// of lane i − 32.
class BestBlocks {
 public:
  // An integer that sorts in the order of the choice: higher scores are better, NaN counts as −inf,
  // and of equal scores the lower block is better. Never 0, which stands for no block.
  __device__ __forceinline__ static uint64_t KeyOf(float score, int block) {
    if (isnan(score)) score = -INFINITY;
    const uint32_t bits = __float_as_uint(score + 0.0f);  // −0 becomes +0
    const uint32_t rank = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
    return (static_cast<uint64_t>(rank) << 32) | (0xffffffffu - static_cast<uint32_t>(block));
  }

  // Offers one block per lane, 0 for none; the best `slots` of all blocks offered so far are kept.
  __device__ __forceinline__ void Offer(uint64_t key, int slots, int lane) {
    if (slots == 0) return;
    const uint64_t worst = slots <= kWarp ? __shfl_sync(kAll, low_, slots - 1)
                                          : __shfl_sync(kAll, high_, slots - 1 - kWarp);
    Add(key, __ballot_sync(kAll, key > worst), slots, lane);
  }
  // Adds the keys of the lanes in `better`, which has all lanes whose keys belong in the list.
  __device__ __forceinline__ void Add(uint64_t key, uint32_t better, int slots, int lane) {
    if (__popc(better) <= kInsertAtMost) {
      if (slots <= kWarp) {
        for (; better != 0; better &= better - 1) Insert(&low_, First(key, better), lane);
      } else {
        for (; better != 0; better &= better - 1) {
          const uint64_t one = First(key, better);
          const uint64_t last = __shfl_sync(kAll, low_, kWarp - 1);
          Insert(&low_, one, lane);
          Insert(&high_, one < last ? one : last, lane);
        }
      }
      return;
    }
    if ((better >> lane & 1) == 0) key = 0;
    Sort(&key, lane);
    Merge(&low_, &key, lane);
    if (slots <= kWarp) return;
    Clean(&key, lane);
    Merge(&high_, &key, lane);
  }

  // Reads and writes a list of `slots` keys in shared memory.
  __device__ __forceinline__ void Load(const uint64_t* list, int slots, int lane) {
    low_ = lane < slots ? list[lane] : 0;
    high_ = lane + kWarp < slots ? list[lane + kWarp] : 0;
  }
  __device__ __forceinline__ void Store(uint64_t* list, int slots, int lane) const {
    if (lane < slots) list[lane] = low_;
    if (lane + kWarp < slots) list[lane + kWarp] = high_;
  }
  // The score of the last of `slots` entries, in the lane that holds it; NaN if the list has fewer.
  __device__ __forceinline__ float LastScore(int slots) const {
    const auto rank = static_cast<uint32_t>((slots <= kWarp ? low_ : high_) >> 32);
    return __uint_as_float((rank >> 31) != 0 ? rank ^ 0x80000000u : ~rank);
  }

  // blocks[n] ← the forced blocks and the best n − 3 that were offered, ascending. When `first` …
  // `current` are at most n blocks: all of these, then −1.
  __device__ __forceinline__ void Store(int first, int current, int n, int* blocks,
                                        int lane) const {
    const int candidates = current - first + 1;
    if (candidates <= n) {
      for (int i = lane; i < n; i += kWarp) blocks[i] = i < candidates ? first + i : -1;
      return;
    }
    const int slots = n - kForced;
    if (lane == 0) {
      blocks[0] = first;
      blocks[n - 2] = current - 1;
      blocks[n - 1] = current;
    }
    const uint32_t mine[2] = {BlockOf(low_), BlockOf(high_)};
    int place[2] = {1, 1};
    for (int i = 0; i < slots; ++i) {
      const uint32_t other = __shfl_sync(kAll, i < kWarp ? mine[0] : mine[1], i % kWarp);
      place[0] += other < mine[0];
      place[1] += other < mine[1];
    }
    if (lane < slots) blocks[place[0]] = static_cast<int>(mine[0]);
    if (lane + kWarp < slots) blocks[place[1]] = static_cast<int>(mine[1]);
  }

 private:
  static constexpr unsigned int kAll = 0xffffffffu;
  // Up to this many keys, insertion takes fewer instructions than sorting and merging 32.
  static constexpr int kInsertAtMost = 10;

  // The key of the first lane in `lanes`.
  __device__ __forceinline__ static uint64_t First(uint64_t key, uint32_t lanes) {
    return __shfl_sync(kAll, key, __ffs(lanes) - 1);
  }
  // Inserts `key`, the same in all lanes, into a sorted list of 32, whose last key drops out.
  __device__ __forceinline__ static void Insert(uint64_t* best, uint64_t key, int lane) {
    const uint64_t before = __shfl_up_sync(kAll, *best, 1);
    if (key > *best) *best = lane > 0 && key > before ? before : key;
  }

  __device__ __forceinline__ static uint32_t BlockOf(uint64_t key) {
    return 0xffffffffu - static_cast<uint32_t>(key);
  }
  // Compares with the lane `distance` away and keeps the larger key if `larger`, else the smaller.
  __device__ __forceinline__ static void Exchange(uint64_t* key, int distance, bool larger) {
    const uint64_t other = __shfl_xor_sync(kAll, *key, distance);
    if ((other > *key) == larger) *key = other;
  }
  // Bitonic sort (Batcher 1968), descending.
  __device__ __forceinline__ static void Sort(uint64_t* key, int lane) {
#pragma unroll
    for (int size = 2; size <= kWarp; size *= 2) {
#pragma unroll
      for (int distance = size / 2; distance > 0; distance /= 2) {
        Exchange(key, distance, ((lane & distance) == 0) == ((lane & size) == 0));
      }
    }
  }
  // Sorts a bitonic sequence (one that rises and then falls, or falls and then rises), descending.
  __device__ __forceinline__ static void Clean(uint64_t* key, int lane) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      Exchange(key, distance, (lane & distance) == 0);
    }
  }
  // Merges two sorted lists of 32. The best 32 go to `best`, sorted; the others stay in `key` as a
  // bitonic sequence, to be sorted by Clean().
  __device__ __forceinline__ static void Merge(uint64_t* best, uint64_t* key, int lane) {
    const uint64_t other = __shfl_sync(kAll, *key, kWarp - 1 - lane);
    *key = other < *best ? other : *best;
    if (other > *best) *best = other;
    Clean(best, lane);
  }

  uint64_t low_ = 0, high_ = 0;
};

}  // namespace nsa::cuda
