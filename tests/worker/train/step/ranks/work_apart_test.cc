#include "worker/train/step/ranks/work_apart.h"

#include <gmock/gmock.h>

#include <thread>

#include "tests/testing/status_matchers.h"
#include "tests/worker/train/comm/on_ranks.h"

namespace nsa::train {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(2);  // of a collective
constexpr auto kLong = std::chrono::milliseconds(3500);

// Counts the collectives that a page shows.
class Progress final : public PageObserver {
 public:
  explicit Progress(StatusPage* page) { page->SetObserver(this); }
  void OnPhase(Phase) override {}
  void OnMicroStep(int32_t) override {}
  void OnLayer(int32_t) override {}
  void OnKernel(std::string_view) override {}
  void OnCollective(std::string_view name) override { collectives += name == "test" ? 1 : 0; }

  int collectives = 0;
};

TEST(WorkApart, RanksThatAreDoneWaitLongerThanACollectiveMay) {
  OnRanks(
      3,
      [](Comm* comm) {
        StatusPage page;
        Progress progress(&page);
        comm->set_status_page(&page);
        std::atomic<bool> cancelled{false};
        int during = -1;
        EXPECT_OK(WorkApart("test", comm, &cancelled, [&] {
          if (comm->rank() == 1) std::this_thread::sleep_for(kLong);
          during = progress.collectives;
          return absl::OkStatus();
        }));
        EXPECT_FALSE(cancelled);
        EXPECT_EQ(during, 0) << "progress is that of the work";
        // The others show that they wait, often enough for any hang timeout.
        if (comm->rank() != 1) {
          EXPECT_GE(progress.collectives, 4);
        }
        EXPECT_OK(comm->Barrier("afterwards"));
        comm->set_status_page(nullptr);
      },
      kTimeout);
}

TEST(WorkApart, AnErrorEndsTheWorkOfTheOthers) {
  OnRanks(
      2,
      [](Comm* comm) {
        std::atomic<bool> cancelled{false};
        const absl::Status status = WorkApart("test", comm, &cancelled, [&]() -> absl::Status {
          if (comm->rank() == 0) return absl::NotFoundError("data.path: /none");
          while (!cancelled) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          return absl::CancelledError("cancelled");
        });
        if (comm->rank() == 0) {
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
          EXPECT_FALSE(cancelled);
        } else {
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, testing::_));
        }
      },
      absl::Seconds(60));
}

TEST(WorkApart, ARankAloneDoesItsWork) {
  const std::unique_ptr<Comm> comm = SingleRank();
  std::atomic<bool> cancelled{false};
  EXPECT_THAT(WorkApart("test", comm.get(), &cancelled, [] { return absl::AbortedError("no"); }),
              StatusIs(absl::StatusCode::kAborted, "no"));
}

}  // namespace
}  // namespace nsa::train
