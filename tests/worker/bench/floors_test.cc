#include "worker/bench/floors.h"

#include "gmock/gmock.h"

namespace nsa::bench {
namespace {

const Ceilings kCeilings{.gemm_flops = 1e15, .copy_bytes = 4e12, .cycles = 1e12};

TEST(Floors, EachUnitsWorkIsDividedByItsCeiling) {
  const Executed executed{.flops = 2e12,
                          .exponentials = 16e9,
                          .instructions = 8e9,
                          .shared_bytes = 384e9,
                          .partial_bytes = 12e9};
  const Floors floors = FloorsOf(1e12, 4e9, executed, kCeilings);
  ASSERT_EQ(floors.size(), 5);
  EXPECT_DOUBLE_EQ(*floors[0].Seconds(), 2e-3);
  EXPECT_DOUBLE_EQ(*floors[1].Seconds(), 1e-3);
  EXPECT_DOUBLE_EQ(*floors[2].Seconds(), 2e-3);
  EXPECT_DOUBLE_EQ(*floors[3].Seconds(), 3e-3);
  EXPECT_DOUBLE_EQ(*floors[4].Seconds(), 4e-3);
  EXPECT_EQ(floors[0].needed, 1e12);
  EXPECT_EQ(floors[4].needed, 4e9);
}

TEST(Floors, WithoutPartialRowsMemoryHasWhatIsNeeded) {
  const Floors floors = FloorsOf(0, 4e9, Executed{}, kCeilings);
  EXPECT_EQ(floors[4].executed, std::nullopt);
  EXPECT_DOUBLE_EQ(*floors[4].Seconds(), 1e-3);
}

TEST(Floors, WhatIsNotDerivedIsADash) {
  EXPECT_EQ(FormatFloors(FloorsOf(0, 4e9, {}, kCeilings), 4e-3),
            "    floor of                 needed         executed        ms  share\n"
            "    matrix unit                   -                -         -      -\n"
            "    exponentials                  -                -         -      -\n"
            "    issue                         -                -         -      -\n"
            "    shared memory                 -                -         -      -\n"
            "    memory                 4.000 GB                -     1.000   25 %\n");
}

}  // namespace
}  // namespace nsa::bench
