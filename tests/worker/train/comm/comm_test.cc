#include "worker/train/comm/comm.h"

#include <gmock/gmock.h>

#include <functional>
#include <future>
#include <thread>

#include "common/base/clock.h"
#include "kernels/dtype.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/comm/stop.h"

namespace nsa::train {
namespace {

using ::testing::HasSubstr;

TcpOptions Rank(const TempDir& dir, int rank, int world, absl::Duration timeout) {
  return {.rank = rank, .world_size = world, .rendezvous_dir = dir.path(), .timeout = timeout};
}

// Runs `body` on one thread per rank, each with its own Comm.
void RunRanks(int world, const std::function<void(Comm*)>& body) {
  const TempDir dir;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto comm = ConnectTcp(Rank(dir, rank, world, absl::Seconds(20)));
      ASSERT_TRUE(comm.ok()) << comm.status();
      body(comm->get());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Cuts of even pieces.
std::vector<int64_t> Even(size_t size, int world) {
  std::vector<int64_t> cuts;
  for (int rank = 0; rank <= world; ++rank) {
    cuts.push_back(static_cast<int64_t>(size) * rank / world);
  }
  return cuts;
}

TEST(Comm, SumsOverTheRanksWithTheSameBitsOnEach) {
  for (const int world : {2, 3}) {
    std::vector<std::vector<float>> results(world);
    RunRanks(world, [&](Comm* comm) {
      std::vector<float> values(10007);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = 0.1f * static_cast<float>(i % 97) + 0.37f * static_cast<float>(comm->rank());
      }
      ASSERT_TRUE(comm->AllReduceSum("sum", values, Even(values.size(), world)).ok());
      results[comm->rank()] = values;
    });
    for (int rank = 1; rank < world; ++rank) EXPECT_EQ(results[0], results[rank]);
    const double want = world * 0.1 * 5 + 0.37 * world * (world - 1) / 2;
    EXPECT_NEAR(results[0][5], want, 1e-5);
  }
}

// What rank `rank` has; sums of three are not exact, and differ with their order.
float Value(int rank, int64_t i) {
  const auto bits = static_cast<uint32_t>((i + 1) * 2654435761u) ^ (0x9e3779b9u * (rank + 1));
  return (static_cast<float>(bits % 20011) - 10005.0f) * 1.37e-5f;
}

std::vector<float> ValuesOf(int rank, int64_t size) {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = Value(rank, i);
  return values;
}

// Uneven pieces of 1,000 values, one of them empty.
std::vector<int64_t> Uneven(int world) {
  if (world == 2) return {0, 37, 1000};
  return {0, 700, 700, 1000};
}

// The sum of element i in piece `piece`: it begins at the rank behind the piece's.
float SumInOrder(int world, int piece, int64_t i, Wire wire) {
  const auto rounded = [wire](float value) {
    return wire == Wire::kBf16 ? static_cast<float>(bf16(value)) : value;
  };
  float sum = rounded(Value((piece + 1) % world, i));
  for (int k = 2; k <= world; ++k) sum = rounded(sum + rounded(Value((piece + k) % world, i)));
  return sum;
}

TEST(Comm, SumsEachPieceForItsRankInAFixedOrder) {
  for (const Wire wire : {Wire::kF32, Wire::kBf16}) {
    for (const int world : {2, 3}) {
      const std::vector<int64_t> cuts = Uneven(world);
      std::vector<std::vector<float>> scattered(world), reduced(world);
      RunRanks(world, [&](Comm* comm) {
        scattered[comm->rank()] = reduced[comm->rank()] = ValuesOf(comm->rank(), cuts.back());
        ASSERT_TRUE(comm->ReduceScatterSum("sum", scattered[comm->rank()], cuts, wire).ok());
        ASSERT_TRUE(comm->AllReduceSum("sum", reduced[comm->rank()], cuts, wire).ok());
      });
      for (int piece = 0; piece < world; ++piece) {
        for (int64_t i = cuts[piece]; i < cuts[piece + 1]; ++i) {
          const float want = SumInOrder(world, piece, i, wire);
          ASSERT_EQ(scattered[piece][i], want) << world << " ranks, element " << i;
          for (int rank = 0; rank < world; ++rank) ASSERT_EQ(reduced[rank][i], want) << i;
        }
      }
    }
  }
}

TEST(Comm, GathersThePiecesAsTheyAre) {
  for (const int world : {2, 3}) {
    const std::vector<int64_t> cuts = Uneven(world);
    std::vector<std::vector<float>> gathered(world);
    RunRanks(world, [&](Comm* comm) {
      gathered[comm->rank()] = ValuesOf(comm->rank(), cuts.back());
      ASSERT_TRUE(comm->AllGather("weights", gathered[comm->rank()], cuts).ok());
    });
    for (int rank = 0; rank < world; ++rank) {
      for (int piece = 0; piece < world; ++piece) {
        for (int64_t i = cuts[piece]; i < cuts[piece + 1]; ++i) {
          ASSERT_EQ(gathered[rank][i], Value(piece, i)) << "rank " << rank << ", element " << i;
        }
      }
    }
  }
}

TEST(Comm, OfOneRankChangesNothingInBf16Either) {
  const std::unique_ptr<Comm> comm = SingleRank();
  std::vector<float> values = ValuesOf(0, 100);
  const std::vector<int64_t> cuts = {0, 100};
  ASSERT_TRUE(comm->AllReduceSum("sum", values, cuts, Wire::kBf16).ok());
  ASSERT_TRUE(comm->ReduceScatterSum("sum", values, cuts, Wire::kBf16).ok());
  ASSERT_TRUE(comm->AllGather("weights", values, cuts).ok());
  EXPECT_EQ(values, ValuesOf(0, 100));
}

TEST(Comm, RefusesCutsThatAreNotOnePieceForEachRank) {
  RunRanks(2, [](Comm* comm) {
    std::vector<float> values(10);
    for (const std::vector<int64_t>& cuts : std::vector<std::vector<int64_t>>{
             {}, {0, 10}, {0, 5, 9}, {1, 5, 10}, {0, 11, 10}, {0, 3, 5, 10}}) {
      const absl::Status refused = comm->ReduceScatterSum("sum", values, cuts);
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(refused.message(), HasSubstr("2 ranks, from 0 to 10"));
      EXPECT_EQ(comm->AllGather("weights", values, cuts).code(),
                absl::StatusCode::kInvalidArgument);
    }
  });
}

TEST(Comm, TakesSumMinimumAndMaximumOfDoubles) {
  RunRanks(2, [&](Comm* comm) {
    const double mine = comm->rank() == 0 ? 2.5 : -1.25;
    std::vector<double> sum = {mine}, least = {mine}, most = {mine};
    ASSERT_TRUE(comm->AllReduce("sum", Reduce::kSum, sum).ok());
    ASSERT_TRUE(comm->AllReduce("min", Reduce::kMin, least).ok());
    ASSERT_TRUE(comm->AllReduce("max", Reduce::kMax, most).ok());
    EXPECT_EQ(sum[0], 1.25);
    EXPECT_EQ(least[0], -1.25);
    EXPECT_EQ(most[0], 2.5);
  });
}

TEST(Comm, BroadcastsTheRootsBytesAndGathersInRankOrder) {
  RunRanks(2, [&](Comm* comm) {
    int64_t value = comm->rank() == 1 ? 4711 : 0;
    ASSERT_TRUE(
        comm->Broadcast("value", 1, std::as_writable_bytes(std::span<int64_t>(&value, 1))).ok());
    EXPECT_EQ(value, 4711);
    const double mine = 10.0 + comm->rank();
    const auto all = Gather(comm, "gather", std::span<const double>(&mine, 1));
    ASSERT_TRUE(all.ok());
    EXPECT_EQ(*all, (std::vector<double>{10.0, 11.0}));
    EXPECT_TRUE(comm->Barrier("barrier").ok());
  });
}

// Block p of rank r of a group arrives as block r of rank p, whatever the sizes.
TEST(Comm, ExchangesBlocksWithinGroupsOfConsecutiveRanks) {
  for (const auto& [world, group] : {std::pair(2, 2), {4, 2}, {4, 4}, {6, 3}, {3, 1}}) {
    SCOPED_TRACE(testing::Message() << world << " ranks in groups of " << group);
    for (const int64_t block : {1, 1000, 300'000}) {
      RunRanks(world, [&](Comm* comm) {
        const int first = comm->rank() / group * group;
        std::vector<int32_t> send(block * group), receive(block * group, -1);
        const auto value = [&](int from, int to, int64_t i) {
          return static_cast<int32_t>(1000 * from + 10 * to + i % 7);
        };
        for (int p = 0; p < group; ++p) {
          for (int64_t i = 0; i < block; ++i) {
            send[p * block + i] = value(comm->rank(), first + p, i);
          }
        }
        ASSERT_TRUE(comm->ExchangeInGroups("heads", group, std::as_bytes(std::span(send)),
                                           std::as_writable_bytes(std::span(receive)))
                        .ok());
        for (int p = 0; p < group; ++p) {
          for (int64_t i = 0; i < block; ++i) {
            ASSERT_EQ(receive[p * block + i], value(first + p, comm->rank(), i)) << p << " " << i;
          }
        }
      });
    }
  }
}

TEST(Comm, RefusesAnExchangeThatCannotBeDivided) {
  const auto comm = SingleRank();
  std::vector<std::byte> four(4), three(3);
  EXPECT_EQ(comm->ExchangeInGroups("heads", 2, four, four).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(comm->ExchangeInGroups("heads", 1, four, three).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Comm, ReportsARankThatClosedItsConnectionAsUnavailable) {
  const TempDir dir;
  absl::Status survivor;
  std::thread leaver([&] {
    auto comm = ConnectTcp(Rank(dir, 1, 2, absl::Seconds(20)));
    ASSERT_TRUE(comm.ok());
  });
  std::thread stayer([&] {
    auto comm = ConnectTcp(Rank(dir, 0, 2, absl::Seconds(20)));
    ASSERT_TRUE(comm.ok());
    std::vector<float> values(1000);
    survivor = (*comm)->AllReduceSum("gradients", values, Even(values.size(), 2));
  });
  leaver.join();
  stayer.join();
  EXPECT_EQ(survivor.code(), absl::StatusCode::kUnavailable) << survivor;
  EXPECT_THAT(std::string(survivor.message()), HasSubstr("gradients: PEER_LOST"));
}

// The remaining rank must not wait for a rank that has left, no matter what it was doing at that
// moment. Gloo's all-reduce sometimes did, for the whole timeout.
TEST(Comm, MissesARankAtOnceWheneverItLeaves) {
  for (int rounds = 0; rounds < 40; ++rounds) {
    const TempDir dir;
    const absl::Duration began = RealClock().Monotonic();
    absl::Status survivor;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        auto comm = ConnectTcp(Rank(dir, rank, 3, absl::Seconds(60)));
        ASSERT_TRUE(comm.ok()) << comm.status();
        std::vector<float> values(100 + 20000 * (rounds % 3), 1.0f);
        absl::Status status;
        for (int i = 0; status.ok() && (rank != 1 || i < rounds); ++i) {
          status = (*comm)->AllReduceSum("gradients", values, Even(values.size(), 3));
        }
        if (rank == 0) survivor = status;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(survivor.code(), absl::StatusCode::kUnavailable) << survivor;
    EXPECT_LT(RealClock().Monotonic() - began, absl::Seconds(30));
  }
}

TEST(Comm, GivesUpOnARankThatStandsStill) {
  const TempDir dir;
  std::promise<void> given_up;
  std::thread other([&] {
    auto comm = ConnectTcp(Rank(dir, 1, 2, absl::Seconds(20)));
    given_up.get_future().wait();
    ASSERT_TRUE(comm.ok()) << comm.status();
  });
  auto comm = ConnectTcp(Rank(dir, 0, 2, absl::Milliseconds(1500)));
  if (comm.ok()) {
    EXPECT_EQ((*comm)->Barrier("barrier").code(), absl::StatusCode::kDeadlineExceeded);
  }
  given_up.set_value();
  other.join();
  ASSERT_TRUE(comm.ok()) << comm.status();
}

TEST(Comm, GivesUpOnARankThatDoesNotCome) {
  const TempDir dir;
  const auto comm = ConnectTcp(Rank(dir, 0, 2, absl::Milliseconds(200)));
  EXPECT_EQ(comm.status().code(), absl::StatusCode::kDeadlineExceeded) << comm.status();
}

TEST(Comm, RefusesARendezvousFolderOfAnEarlierStart) {
  const TempDir dir;
  EXPECT_FALSE(ConnectTcp(Rank(dir, 0, 2, absl::Milliseconds(100))).ok());
  const auto again = ConnectTcp(Rank(dir, 0, 2, absl::Milliseconds(100)));
  EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition) << again.status();
}

TEST(Comm, ShowsTheCollectiveThatItWaitsForOnTheStatusPage) {
  const TempDir dir;
  auto page = StatusPage::Create(dir / "status", 0, 1, 1);
  ASSERT_TRUE(page.ok());
  const auto comm = SingleRank();
  comm->set_status_page(&*page);
  std::vector<float> values(1);
  ASSERT_TRUE(comm->AllReduceSum("gradients", values, Even(values.size(), 1)).ok());
  const auto status = ReadStatusPage(dir / "status");
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->collective, "") << "left again";
  EXPECT_EQ(status->collective_sequence, 1);
}

TEST(StopState, EscalatesOnly) {
  StopState stop;
  v1::StopRequest at_step, graceful, now;
  at_step.set_mode(v1::STOP_MODE_AT_STEP);
  at_step.set_at_step(40);
  graceful.set_mode(v1::STOP_MODE_GRACEFUL);
  now.set_mode(v1::STOP_MODE_NOW);
  EXPECT_EQ(stop.stop_after(), StopState::kNever);
  EXPECT_TRUE(stop.Request(at_step).ok());
  EXPECT_EQ(stop.stop_after(), 40);
  EXPECT_TRUE(stop.Request(graceful).ok());
  EXPECT_TRUE(stop.Request(at_step).ok());
  EXPECT_EQ(stop.stop_after(), 0);
  EXPECT_EQ(stop.Request(now).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(stop.Request({}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Conclude, StopsAllRanksAtTheEarliestStepThatOneWasAskedFor) {
  const std::vector<RankReport> reports = {{.loss = 1.0}, {.loss = 3.0, .stop_after = 40}};
  EXPECT_EQ(Conclude(reports, 39).loss, 2.0);
  EXPECT_FALSE(Conclude(reports, 39).stop);
  EXPECT_TRUE(Conclude(reports, 40).stop);
  EXPECT_TRUE(Conclude(reports, 40).at_step);
  EXPECT_TRUE(Conclude(reports, 41).stop);
  EXPECT_FALSE(Conclude(reports, 41).at_step);
}

TEST(Conclude, BeginsATraceOnceEveryRankIsAskedForTheSame) {
  EXPECT_TRUE(Conclude(std::vector<RankReport>{{.profile = 7}, {.profile = 7}}, 1).profile);
  EXPECT_FALSE(Conclude(std::vector<RankReport>{{.profile = 7}, {.profile = 8}}, 1).profile);
  EXPECT_FALSE(Conclude(std::vector<RankReport>{{.profile = 7}, {}}, 1).profile);
  EXPECT_FALSE(Conclude(std::vector<RankReport>{{}, {}}, 1).profile);
}

TEST(Conclude, IsNotFiniteAndTooSlowWhenOneRankIs) {
  EXPECT_FALSE(Conclude(std::vector<RankReport>{{}, {.finite = false}}, 1).finite);
  EXPECT_TRUE(Conclude(std::vector<RankReport>{{}, {.too_slow = true}}, 1).too_slow);
  EXPECT_TRUE(Conclude(std::vector<RankReport>{{}, {}}, 1).finite);
  EXPECT_TRUE(Conclude(std::vector<RankReport>{{}, {.exhausted = true}}, 1).exhausted);
  EXPECT_FALSE(Conclude(std::vector<RankReport>{{}, {}}, 1).exhausted);
}

TEST(Exchange, CarriesALossThatIsNotFiniteFromOneRankToAll) {
  RunRanks(2, [&](Comm* comm) {
    const RankReport mine = comm->rank() == 0 ? RankReport{.loss = 1.5, .stop_after = 7}
                                              : RankReport{.loss = INFINITY, .finite = false};
    const auto reports = Exchange(comm, mine);
    ASSERT_TRUE(reports.ok());
    EXPECT_EQ((*reports)[0].loss, 1.5);
    EXPECT_EQ((*reports)[0].stop_after, 7);
    EXPECT_EQ((*reports)[1].stop_after, StopState::kNever);
    EXPECT_FALSE((*reports)[1].finite);
    EXPECT_FALSE(Conclude(*reports, 1).finite);
  });
}

}  // namespace
}  // namespace nsa::train
