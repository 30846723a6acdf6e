// How much dynamic shared memory each attention kernel takes, and how many of its thread blocks a
// multiprocessor has room for. What is not dynamic is in tests/kernels/cuda/resources.golden.
#include "kernels/nsa/branch/tile_sizes.h"

#include <string>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "kernels/cuda/occupancy.h"

namespace nsa::cuda {
namespace {

// The numbers of one code: bytes, thread blocks that registers are divided for, and those that
// shared memory has room for on the code's GPU.
std::string Numbers(int of_multiprocessor, int bytes, int blocks) {
  return absl::StrFormat("%9d %2d %2d", bytes, blocks, BlocksIn(of_multiprocessor, bytes));
}
std::string Numbers(bool sm90a, int bytes, int blocks) {
  return Numbers(sm90a ? kSharedOfHopperMultiprocessor : kSharedOfA100Multiprocessor, bytes,
                 blocks);
}

// `of(sm90a)` has the numbers; "-" where a code does not launch the kernel.
template <class Of>
void AddRow(const char* kernel, int width, Of of, std::string* table) {
  absl::StrAppendFormat(table, "%-20s %3d %16s %16s\n", kernel, width, of(false), of(true));
}

bool Large(int width, bool sm90a) { return width <= 64 || sm90a; }

void AddQueryMajor(int width, std::string* table) {
  const auto dq = [&](bool sm90a, int union_bytes) {
    return Numbers(sm90a,
                   DqSharedBytes(width, StagesOf(Large(width, sm90a)), DqRows(width), union_bytes),
                   QueryMajorBlocks(width));
  };
  AddRow(
      "forward", width,
      [&](bool sm90a) {
        return Numbers(sm90a, ForwardSharedBytes(width, Large(width, sm90a), ForwardRows(width), 0),
                       QueryMajorBlocks(width));
      },
      table);
  AddRow(
      "dq", width, [&](bool sm90a) { return dq(sm90a, 0); }, table);
  // The most blocks with which the default model goes by query: below 8 n.
  AddRow(
      "dq, 127 blocks", width, [&](bool sm90a) { return dq(sm90a, UnionBytes(127, 16, 21)); },
      table);
}

void AddKeyMajor(int width, std::string* table) {
  const auto dkv = [&](bool sm90a, Branch branch, int list) {
    const int groups = DkvGroups(branch, width, Large(width, sm90a));
    return Numbers(sm90a, DkvSharedBytes(width, Large(width, sm90a), groups, list),
                   DkvBlocks(width, groups));
  };
  AddRow(
      "dkv window", width, [&](bool sm90a) { return dkv(sm90a, kWin, 0); }, table);
  AddRow(
      "dkv compressed", width, [&](bool sm90a) { return dkv(sm90a, kCmp, 0); }, table);
  AddRow(
      "dkv selected", width, [&](bool sm90a) { return dkv(sm90a, kSel, kLongestSegment); }, table);
}

void AddByKey(int width, std::string* table) {
  AddRow(
      "forward by key", width,
      [&](bool sm90a) {
        return Numbers(sm90a, ByKeySharedBytes(width, false), ByKeyBlocks(width, false, sm90a));
      },
      table);
  AddRow(
      "dq by key", width,
      [&](bool sm90a) -> std::string {
        if (GoesInOnePass(width, sm90a)) return "-";
        return Numbers(sm90a, ByKeySharedBytes(width, true), ByKeyBlocks(width, true, sm90a));
      },
      table);
  AddRow(
      "one pass", width,
      [&](bool sm90a) -> std::string {
        if (!GoesInOnePass(width, sm90a)) return "-";
        return Numbers(sm90a, OnePassSharedBytes(width), DkvBlocks(width, 1));
      },
      table);
}

// Width, then for sm_80 on an A100 and for sm_90a on Hopper: bytes of a thread block, thread blocks
// that registers are divided for, and those that shared memory has room for. Where the last is less
// than the second, shared memory decides: on an A100 it does for some of the kernels, which costs
// little (docs/a100.md).
constexpr char kTable[] = R"(forward               16      16440  2  9      16440  2 13
dq                    16      20536  2  7      20536  2 10
dq, 127 blocks        16      21592  2  7      21592  2 10
dkv window            16      16400  3  9      16400  3 13
dkv compressed        16      16400  3  9      16400  3 13
dkv selected          16      24592  3  6      24592  3  9
forward by key        16      15360  4 10      15360  4 14
dq by key             16      19456  3  8      19456  3 11
one pass              16                -                -
forward               32      32824  2  4      32824  2  6
dq                    32      41016  2  3      41016  2  5
dq, 127 blocks        32      42072  2  3      42072  2  5
dkv window            32      28688  3  5      28688  3  7
dkv compressed        32      28688  3  5      28688  3  7
dkv selected          32      36880  3  4      36880  3  6
forward by key        32      23552  4  6      23552  4  9
dq by key             32      31744  3  5      31744  3  7
one pass              32                -                -
forward               64      65592  2  2      65592  2  3
dq                    64      81976  2  2      81976  2  2
dq, 127 blocks        64      83032  2  1      83032  2  2
dkv window            64      53264  3  3      53264  3  4
dkv compressed        64      53264  3  3      53264  3  4
dkv selected          64      61456  3  2      61456  3  3
forward by key        64      39936  4  4      39936  4  5
dq by key             64      56320  3  2                -
one pass              64                -      64512  3  3
forward              128     114744  1  1     147512  1  1
dq                   128     163896  1  1     196664  1  1
dq, 127 blocks       128     164952  1  1     197720  1  1
dkv window           128      67600  2  2     102416  2  2
dkv compressed       128      67600  2  2     168464  1  1
dkv selected         128      75792  2  2     110608  2  2
forward by key       128      72704  2  2      72704  3  3
dq by key            128     105472  2  1                -
one pass             128                -     113664  2  2
forward              192     155704  1  1     196664  1  1
dq                   192     163896  1  1     204856  1  1
dq, 127 blocks       192     164952  1  1     205912  1  1
dkv window           192      83984  2  1      83984  2  2
dkv compressed       192      83984  2  1     145680  1  1
dkv selected         192      92176  2  1      92176  2  2
forward by key       192      72704  2  2      72704  3  3
dq by key            192      89088  1  1      89088  2  2
one pass             192                -                -
)";

TEST(TileSizes, GiveEachKernelTheSharedMemoryOfTheTable) {
  std::string table;
  for (const int width : {16, 32, 64, 128, 192}) {
    AddQueryMajor(width, &table);
    AddKeyMajor(width, &table);
    AddByKey(width, &table);
  }
  EXPECT_EQ(table, kTable);
}

TEST(TileSizes, KnowTheLongestSegmentOfAList) {
  const NsaShape long_lists{64, 65'536, 16, 16, 64, 64, 32, 16, 64, 64, 512};
  EXPECT_EQ(PlanSelectedScratch(long_lists).segment, kLongestSegment);
}

// With heads of 128 and one warp group dq has two stages instead of three.
TEST(TileSizes, LeaveRoomForTwoThreadBlocksOfThinTilesOnHopper) {
  EXPECT_EQ(BlocksIn(kSharedOfHopperMultiprocessor, DqSharedBytes(128, 2, 64, 0)), 2);
}

}  // namespace
}  // namespace nsa::cuda
