#include "server/act/executor.h"

#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include "gtest/gtest.h"

namespace nsa::server {
namespace {

// Tasks that hold a thread until they are let go.
class Held {
 public:
  std::function<void()> Task() {
    return [this, until = until_] {
      ++running_;
      until.wait();
    };
  }
  void LetGo() { go_.set_value(); }
  int running() const { return running_; }

 private:
  std::promise<void> go_;
  std::shared_future<void> until_ = go_.get_future().share();
  std::atomic<int> running_ = 0;
};

TEST(Executor, OneCallerLeavesAThreadForOthers) {
  Held held;
  Executor executor("test", 3, 100);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(executor.TryRun(held.Task(), "mallory"));
  for (int i = 0; i < 5; ++i) {
    std::promise<void> done;
    EXPECT_TRUE(executor.TryRun([&done] { done.set_value(); }, "ada"));
    done.get_future().wait();
    std::promise<void> also;
    executor.Run([&also] { also.set_value(); });
    also.get_future().wait();
  }
  EXPECT_LE(held.running(), 2);
  held.LetGo();
  while (held.running() < 10) std::this_thread::yield();
}

TEST(Executor, TasksWithoutALimitLeaveAThreadForOthersToo) {
  Held held;
  Executor executor("test", 2);
  for (int i = 0; i < 10; ++i) executor.Run(held.Task(), "mallory");
  std::promise<void> done;
  executor.Run([&done] { done.set_value(); }, "ada");
  done.get_future().wait();
  EXPECT_LE(held.running(), 1);
  held.LetGo();
  while (held.running() < 10) std::this_thread::yield();
}

TEST(Executor, OneCallerLeavesHalfOfTheQueueToOthers) {
  Held held;
  Executor executor("test", 1, 8);
  EXPECT_TRUE(executor.TryRun(held.Task()));
  while (held.running() == 0) std::this_thread::yield();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(executor.TryRun([] {}, "mallory"));
  EXPECT_FALSE(executor.TryRun([] {}, "mallory"));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(executor.TryRun([] {}));
  EXPECT_FALSE(executor.TryRun([] {}, "ada")) << "full";
  held.LetGo();
}

TEST(Executor, RunsAllTasksOfACallerBeforeItEnds) {
  std::atomic<int> ran = 0;
  {
    Executor executor("test", 3, 1'000);
    for (int i = 0; i < 400; ++i) EXPECT_TRUE(executor.TryRun([&ran] { ++ran; }, "ada"));
  }
  EXPECT_EQ(ran, 400);
}

}  // namespace
}  // namespace nsa::server
