#include "common/nsa/nsa_shape.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr NsaShape kM7c{2, 2048, 12, 2, 64, 64, 32, 16, 64, 16, 512};

TEST(NsaShape, PrintsItsLetters) {
  EXPECT_EQ(kM7c.ToString(), "B=2 S=2048 H=12 G=2 dk=64 dv=64 l=32 d=16 l'=64 n=16 w=512");
}

TEST(NsaShape, CountsBlocks) {
  EXPECT_EQ(kM7c.cmp_blocks(), 127);
  EXPECT_EQ(kM7c.sel_blocks(), 32);
  NsaShape s = kM7c;
  s.seq_len = 31;
  EXPECT_EQ(s.cmp_blocks(), 0);
  s.seq_len = 65;
  EXPECT_EQ(s.sel_blocks(), 2);
}

struct Limit {
  const char* name;
  int32_t NsaShape::*field;
  std::vector<int32_t> valid;
  std::vector<int32_t> refused;
};

TEST(NsaShape, EveryLimitOfTheHeaderHoldsAtItsEdge) {
  const std::vector<Limit> limits = {
      {"batch", &NsaShape::batch, {1, 87381}, {0, -1, 87382}},  // 87381 · 2048 · 12 < 2^31
      {"seq_len", &NsaShape::seq_len, {1, 31, 32, 2047, 1048576}, {0, 1048577}},
      {"n_heads", &NsaShape::n_heads, {2, 32}, {0, -2, 34}},
      {"n_kv_groups", &NsaShape::n_kv_groups, {1, 2, 3, 4, 6, 12}, {0, -1, 5, 24}},
      {"d_k", &NsaShape::d_k, {16, 32, 64, 128, 192}, {0, 8, 48, 96, 160, 191, 256}},
      {"d_v", &NsaShape::d_v, {16, 32, 64, 128}, {0, 8, 48, 96, 192, 256}},
      {"l", &NsaShape::l, {16, 32, 128}, {0, -16, 15, 33, 144}},
      {"d", &NsaShape::d, {1, 2, 32}, {0, -1, 64, 24}},
      {"l_sel", &NsaShape::l_sel, {16, 32, 256}, {0, 72, 272}},
      {"n_sel", &NsaShape::n_sel, {3, 64}, {2, 65}},
      {"w", &NsaShape::window, {1, 100000}, {0, -5}},
  };
  for (const Limit& limit : limits) {
    for (const int32_t value : limit.valid) {
      NsaShape s = kM7c;
      s.*limit.field = value;
      EXPECT_OK(s.Validate()) << limit.name << " " << value;
    }
    for (const int32_t value : limit.refused) {
      NsaShape s = kM7c;
      s.*limit.field = value;
      EXPECT_THAT(s.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("; ")))
          << limit.name << " " << value;
    }
  }
}

TEST(NsaShape, NamesTheFieldTheValueAndWhatToDo) {
  NsaShape s = kM7c;
  s.n_sel = 2;
  EXPECT_THAT(std::string(s.Validate().message()), StartsWith("n_sel: 2 (from 3 to 64"));
  s = kM7c;
  s.l_sel = 72;
  EXPECT_THAT(std::string(s.Validate().message()),
              StartsWith("l_sel: 72 (must be a multiple of d = 16)"));
}

TEST(NsaShape, AProblemHasFieldValueLimitAndFix) {
  EXPECT_FALSE(kM7c.FindProblem().has_value());
  EXPECT_FALSE(kM7c.FindProblemOnCuda().has_value());
  NsaShape s = kM7c;
  s.window = -5;
  const std::optional<ShapeProblem> problem = s.FindProblemOnCuda();
  ASSERT_TRUE(problem.has_value());
  EXPECT_STREQ(problem->field, "w");
  EXPECT_EQ(problem->value, -5);
  EXPECT_EQ(problem->limit, "at least 1");
  EXPECT_EQ(problem->fix, "take a window of at least 1, e.g. 512");
}

TEST(NsaShape, OnCudaNamesWhatSharedMemoryLimits) {
  EXPECT_OK(kM7c.ValidateOnCuda());
  NsaShape s = kM7c;
  s.seq_len = 1048576;
  s.l_sel = 32;
  EXPECT_THAT(std::string(s.ValidateOnCuda().message()), StartsWith("l_sel: 32 (at most 16384"));
  s = kM7c;
  s.l = 128, s.d = 8, s.l_sel = 8;
  EXPECT_THAT(std::string(s.ValidateOnCuda().message()),
              StartsWith("l: 128 (at most 8 times l_sel = 8"));
  s.l = 64;
  EXPECT_OK(s.ValidateOnCuda());
}

// The check itself must not overflow.
TEST(NsaShape, RefusesProductsBeyond31BitsWhateverTheirSize) {
  NsaShape s = kM7c;
  s.batch = 2147483647;
  s.seq_len = 1048576;
  s.n_heads = 2147483632;
  s.n_kv_groups = s.n_heads / 16;
  EXPECT_THAT(s.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("batch")));
}

TEST(NsaShape, ShortSequencesAreValid) {
  for (const int32_t seq_len : {1, 5, 31, 63, 511}) {
    NsaShape s = kM7c;
    s.seq_len = seq_len;
    EXPECT_OK(s.Validate()) << seq_len;
  }
}

}  // namespace
}  // namespace nsa
