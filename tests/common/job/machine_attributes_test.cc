// What jobs may require of machines.
#include "common/job/machine_attributes.h"

#include "common/job/require.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

v1::NodeInfo InfoOf(const std::string& gpu, double gib, const std::string& rack, int gpus = 2) {
  v1::NodeInfo info;
  info.set_cuda_worker(true);
  info.set_memory_bytes(int64_t{512} << 30);
  (*info.mutable_labels())["rack"] = rack;
  for (int i = 0; i < gpus; ++i) {
    info.add_gpus()->set_name(gpu);
    info.mutable_gpus(i)->set_memory_bytes(static_cast<int64_t>(gib * (1 << 30)));
  }
  return info;
}

TEST(MachineAttributes, AModelIsMetByItsWords) {
  const Attributes a100 = AttributesOf(InfoOf("NVIDIA A100-SXM4-80GB", 79.2, "a"));
  for (const char* words : {"a100", "A100", "a100 80gb", "nvidia a100-sxm4"}) {
    EXPECT_TRUE(Meets({{"gpu", words}}, a100)) << words;
  }
  for (const char* words : {"h100", "a10", "a100 40gb"}) {
    EXPECT_FALSE(Meets({{"gpu", words}}, a100)) << words;
  }
  v1::NodeInfo mixed = InfoOf("NVIDIA H100", 80, "a");
  mixed.mutable_gpus(1)->set_name("NVIDIA A100-SXM4-80GB");
  EXPECT_FALSE(Meets({{"gpu", "h100"}}, AttributesOf(mixed))) << "a rank may get the other one";
  EXPECT_FALSE(Meets({{"gpu", "h100"}}, AttributesOf(v1::NodeInfo()))) << "no GPU";
}

TEST(MachineAttributes, MemoryIsAtLeastAndLabelsAreEqual) {
  const Attributes machine = AttributesOf(InfoOf("NVIDIA A100-SXM4-80GB", 79.2, "a"));
  EXPECT_TRUE(Meets({{"gpu_memory", "80"}, {"memory", "500"}, {"rack", "a"}}, machine));
  EXPECT_FALSE(Meets({{"gpu_memory", "141"}}, machine));
  EXPECT_FALSE(Meets({{"memory", "1024"}}, machine));
  EXPECT_FALSE(Meets({{"rack", "b"}}, machine));
  EXPECT_FALSE(Meets({{"room", "1"}}, machine));
  EXPECT_TRUE(Meets({}, AttributesOf(v1::NodeInfo())));
}

TEST(MachineAttributes, WhatNobodyHasIsExplained) {
  const std::vector<Attributes> machines = {AttributesOf(InfoOf("NVIDIA A100", 40, "a")),
                                            AttributesOf(InfoOf("NVIDIA H100", 80, "b"))};
  EXPECT_EQ(UnmetText({{"gpu", "h100"}}, machines), "");
  EXPECT_EQ(UnmetText({{"gpu", "h200"}}, machines),
            "gpu: h200 (1 machine with NVIDIA A100, 1 machine with NVIDIA H100)");
  EXPECT_THAT(UnmetText({{"gpu", "h100"}, {"rack", "a"}}, machines),
              HasSubstr("gpu: h100, rack: a (each is met by a machine, but not all by one)"));
  EXPECT_THAT(UnmetText({{"room", "1"}}, machines), HasSubstr("2 machines with no such label"));
}

TEST(MachineAttributes, WrongRequirementsAreRefused) {
  EXPECT_EQ(RequirementFault("gpu_memory", "80"), "");
  EXPECT_EQ(RequirementFault("rack", ""), "");
  for (const char* bad : {"", "x", "0", "-1", "nan", "inf"}) {
    EXPECT_NE(RequirementFault("gpu_memory", bad), "") << bad;
  }
  EXPECT_NE(RequirementFault("gpu", ""), "");
  EXPECT_NE(RequirementFault("", "a"), "");
}

}  // namespace
}  // namespace nsa
