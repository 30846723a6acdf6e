// nsactl node: what it sends, prints and returns, against a fake coordinator.
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class NodeTest : public CommandsTest {
 protected:
  NodeTest() {
    v1::Node& node = state().nodes.emplace_back();
    node.mutable_info()->set_name("box");
    node.mutable_info()->set_cpu_slots(2);
    node.set_state("READY");
    node.set_cpu_slots_used(1);
    node.add_job_ids("jdemo1234567");
  }
};

TEST_F(NodeTest, CordonSendsTheReasonAndSaysWhatHolds) {
  const Ran ran = Run({"node", "cordon", "box", "--reason", "loud fan"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_EQ(ran.out, "box: CORDONED, cordoned by local (loud fan)\n");
  EXPECT_THAT(service().Requests("CordonNode"),
              ElementsAre(AllOf(HasSubstr("box"), HasSubstr("loud fan"), Not(HasSubstr("drain")))));
  EXPECT_EQ(Run({"nodes"}).out,
            "NAME  STATE           CPU SLOTS  GPUS  FREE MEMORY  HEARTBEAT  JOBS          CORDON\n"
            "box   READY,CORDONED        1/2  -     0 B          -          jdemo1234567  cordoned "
            "by local (loud fan)\n");
  EXPECT_EQ(Run({"node", "uncordon", "box"}).out, "box: ranks may be placed on it\n");
  EXPECT_THAT(Run({"nodes"}).out, Not(HasSubstr("CORDON")));
}

TEST_F(NodeTest, DrainShowsWhatMovesAndWaitsUntilTheMachineIsEmpty) {
  state().looks_until_drained = 2;
  const Ran ran = Run({"node", "drain", "box", "--reason", "new kernel"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_EQ(ran.out,
            "box: DRAINING, drained by local (new kernel)\n"
            "demo (jdemo1234567): restarting on box (MOVING), 375/1000\n"
            "demo (jdemo1234567): training on elsewhere (ALL_RANKS_UP), 375/1000\n"
            "box: DRAINED, drained by local (new kernel)\n");
}

TEST_F(NodeTest, DrainContinuesWhenTheCoordinatorIsAwayForAWhile) {
  // More than gRPC itself repeats.
  state().failures["ListNodes"] =
      std::vector<grpc::Status>(12, grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  const Ran ran = Run({"node", "drain", "box"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_THAT(ran.err, HasSubstr("connection to the coordinator lost"));
  EXPECT_THAT(ran.out, HasSubstr("box: DRAINED"));
}

TEST_F(NodeTest, DrainDoesNotWaitIfItNeedNot) {
  const Ran ran = Run({"node", "drain", "box", "--deadline", "10m", "--no-wait"});
  EXPECT_EQ(ran.out, "box: DRAINING, drained by local\n");
  EXPECT_THAT(service().Requests("CordonNode"),
              ElementsAre(AllOf(HasSubstr("drain: true"), HasSubstr("deadline_seconds: 600"))));
  EXPECT_THAT(service().Requests("ListNodes"), IsEmpty());
}

TEST_F(NodeTest, DrainWatchesTheOthersWhenAMachineIsUnknown) {
  state().looks_until_drained = 2;
  const Ran ran = Run({"node", "drain", "box", "nobody"});
  EXPECT_EQ(ran.code, ExitCode::kNotFound);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("box: DRAINING"), HasSubstr("box: DRAINED")));
  EXPECT_THAT(ran.err, HasSubstr("nobody"));
}

TEST_F(NodeTest, DrainWatchesTheOthersWhenOneCannotBeWatched) {
  state().nodes.emplace_back().mutable_info()->set_name("other");
  state().looks_until_drained = 2;
  state().failures["ListNodes"] = {
      grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "node: other is uncordoned")};
  const Ran ran = Run({"node", "drain", "other", "box"});
  EXPECT_EQ(ran.code, ExitCode::kPrecondition);
  EXPECT_THAT(ran.out, HasSubstr("box: DRAINED"));
  EXPECT_THAT(ran.err, HasSubstr("other is uncordoned"));
}

TEST_F(NodeTest, SeveralMachinesAreOneDocument) {
  v1::Node& other = state().nodes.emplace_back();
  other.mutable_info()->set_name("other");
  const Ran ran = Run({"node", "cordon", "box", "other", "-o", "json"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  const auto document = nlohmann::json::parse(ran.out, nullptr, false);
  ASSERT_EQ(document["nodes"].size(), 2u) << ran.out;
  EXPECT_EQ(document["nodes"][1]["info"]["name"], "other");
  EXPECT_EQ(Run({"node", "drain", "box", "-o", "name"}).out, "box\n");
}

TEST_F(NodeTest, WrongDeadlinesAndUnknownMachinesAreNamed) {
  for (const std::string text : {"x", "-1s", "0.5s", "10"}) {
    const Ran ran = Run({"node", "drain", "box", "--deadline", text});
    EXPECT_EQ(ran.code, ExitCode::kUsage) << text;
    EXPECT_THAT(ran.err, HasSubstr("--deadline: '" + text + "'"));
  }
  EXPECT_THAT(service().Requests("CordonNode"), IsEmpty());
  EXPECT_EQ(Run({"node", "drain", "nobody"}).code, ExitCode::kNotFound);
  EXPECT_EQ(Run({"node", "uncordon", "nobody"}).code, ExitCode::kNotFound);
}

TEST_F(NodeTest, ADocumentHasTheCordon) {
  const auto json = nlohmann::json::parse(Run({"node", "drain", "box", "-o", "json"}).out);
  EXPECT_EQ(json["cordon"]["by"], "local");
  EXPECT_EQ(json["cordon"]["drain"], true);
  EXPECT_EQ(Run({"node", "uncordon", "box", "-o", "name"}).out, "box\n");
}

// "box" and three more machines: gpu-1 and gpu-2 in rack a, gpu-3 in rack b.
class SeveralNodesTest : public NodeTest {
 protected:
  SeveralNodesTest() {
    for (const std::string name : {"gpu-1", "gpu-2", "gpu-3"}) {
      v1::Node& node = state().nodes.emplace_back();
      node.mutable_info()->set_name(name);
      node.set_state("READY");
      (*node.mutable_info()->mutable_labels())["rack"] = name == "gpu-3" ? "b" : "a";
    }
  }
  std::vector<std::string> Cordoned() {
    std::vector<std::string> names;
    for (const v1::Node& node : state().nodes) {
      if (node.has_cordon()) names.push_back(node.info().name());
    }
    return names;
  }
};

TEST_F(SeveralNodesTest, NamedMachinesAreCordonedWithoutAQuestion) {
  EXPECT_EQ(Run({"node", "cordon", "gpu-1", "gpu-3"}).code, ExitCode::kOk);
  EXPECT_THAT(Cordoned(), ElementsAre("gpu-1", "gpu-3"));
  EXPECT_EQ(Run({"node", "uncordon", "gpu-*", "--yes"}).code, ExitCode::kOk);
  EXPECT_THAT(Cordoned(), IsEmpty());
}

TEST_F(SeveralNodesTest, WhatIsLookedForIsListedAndConfirmedFirst) {
  EXPECT_EQ(Run({"node", "cordon", "gpu-*"}).code, ExitCode::kUsage) << "nobody can be asked";
  EXPECT_THAT(Cordoned(), IsEmpty());
  EXPECT_EQ(Run({"node", "cordon", "--require", "rack=a", "--yes"}).code, ExitCode::kOk);
  EXPECT_THAT(Cordoned(), ElementsAre("gpu-1", "gpu-2"));
  EXPECT_EQ(Run({"node", "drain", "gpu-*", "--require", "rack=b", "--yes"}).code, ExitCode::kOk);
  EXPECT_THAT(Cordoned(), ElementsAre("gpu-1", "gpu-2", "gpu-3"));
}

TEST_F(SeveralNodesTest, WrongChoicesAreNamedAndChangeNothing) {
  EXPECT_EQ(Run({"node", "cordon"}).code, ExitCode::kUsage);
  EXPECT_EQ(Run({"node", "cordon", "--require", "rack"}).code, ExitCode::kUsage);
  EXPECT_EQ(Run({"node", "cordon", "--require", "gpu_memory=much"}).code, ExitCode::kUsage);
  EXPECT_EQ(Run({"node", "cordon", "cpu-*", "--yes"}).code, ExitCode::kNotFound);
  EXPECT_THAT(Cordoned(), IsEmpty());
  const Ran ran = Run({"node", "cordon", "gpu-1", "nobody"});
  EXPECT_EQ(ran.code, ExitCode::kNotFound);
  EXPECT_THAT(ran.err, HasSubstr("failed for 1 of 2 machines"));
  EXPECT_THAT(Cordoned(), ElementsAre("gpu-1"));
}

}  // namespace
}  // namespace nsa::client
