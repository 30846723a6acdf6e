// runtime.shard: auto, which the machines that a job gets decide.
#include "common/estimate/memory/memory.h"
#include "common/estimate/shares.h"
#include "common/job/load.h"
#include "gmock/gmock.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using v1::Job;

class ShardTest : public Harness {
 protected:
  // What a job of two ranks divides on a machine that has, for each of them, as much memory as
  // whole states take, less `less` bytes.
  v1::Shard Decided(int64_t less) {
    v1::JobSpec spec = Spec("demo", 2);
    spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
    SetShard(v1::SHARD_NONE, &spec);
    v1::JobSpec whole = spec;
    ApplyDefaults(&whole);
    ResolveDevice(/*has_gpu=*/false, &whole);
    FakeAgent agent = MakeAgent("a", 2);
    agent.node().set_memory_bytes(2 * (TotalBytes(MemoryEstimate(whole)) - less));
    agent.node().set_free_memory_bytes(agent.node().memory_bytes());
    Round({&agent});
    SetShard(v1::SHARD_AUTO, &spec);
    const std::string id = Submit(spec);
    RunUntil(id, Job::STATE_RUNNING, {&agent});
    return Get(id).spec().runtime().shard();
  }
};

TEST_F(ShardTest, AutoIsNoneWhereWholeStatesFit) { EXPECT_EQ(Decided(0), v1::SHARD_NONE); }

TEST_F(ShardTest, AutoIsTheFirstLevelThatFits) { EXPECT_EQ(Decided(1), v1::SHARD_OPTIMIZER); }

}  // namespace
}  // namespace nsa::server
