#include "server/rpc/gate/frame_watch.h"

#include <string>

#include "gtest/gtest.h"

namespace nsa::server {
namespace {

constexpr char kGreeting[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr absl::Duration kStart = absl::Seconds(1'000);

std::string FrameOf(int type, int flags, int stream, size_t length) {
  std::string frame(9 + length, 'x');
  for (int i = 0; i < 3; ++i) frame[i] = static_cast<char>(length >> (8 * (2 - i)));
  frame[3] = static_cast<char>(type);
  frame[4] = static_cast<char>(flags);
  for (int i = 0; i < 4; ++i) frame[5 + i] = static_cast<char>(stream >> (8 * (3 - i)));
  return frame;
}
std::string Data(int flags, size_t length) { return FrameOf(0, flags, 1, length); }
std::string Headers(int stream, int flags = 4) { return FrameOf(1, flags, stream, 40); }
std::string Reset(int stream) { return FrameOf(3, 0, stream, 4); }
std::string Continuation(int stream, int flags, size_t length) {
  return FrameOf(9, flags, stream, length);
}

class FrameWatchTest : public ::testing::Test {
 protected:
  // True when all of it passes.
  bool Send(const std::string& bytes) {
    return watch_.Pass(bytes, known_, now_) == bytes.size() && watch_.fault() == nullptr;
  }
  // How many of `count` times `bytes` pass.
  int SendMany(const std::string& bytes, int count) {
    int passed = 0;
    while (passed < count && Send(bytes)) ++passed;
    return passed;
  }
  void Greet() { ASSERT_TRUE(Send(kGreeting)); }
  std::string Fault() const { return watch_.fault() == nullptr ? "" : watch_.fault(); }

  Bucket strangers_{500, 500};
  FrameWatch watch_{&strangers_};
  absl::Duration now_ = kStart;
  bool known_ = false;
};

TEST_F(FrameWatchTest, PassesACallInPiecesOfAnySize) {
  const std::string call = kGreeting + FrameOf(4, 0, 0, 18) + Headers(1) + Data(0, 70'000) +
                           Data(1, 0) + FrameOf(8, 0, 0, 4) + FrameOf(6, 1, 0, 8);
  for (const size_t piece : {size_t{1}, size_t{8}, size_t{9}, size_t{1000}, call.size()}) {
    FrameWatch watch(&strangers_);
    std::string held;
    std::string passed;
    for (size_t at = 0; at < call.size(); at += piece) {
      held += call.substr(at, piece);
      const size_t part = watch.Pass(held, known_, now_);
      passed += held.substr(0, part);
      held.erase(0, part);
    }
    EXPECT_EQ(watch.fault(), nullptr) << piece;
    EXPECT_EQ(passed, call) << piece;
  }
}

TEST_F(FrameWatchTest, AnotherProtocolIsNoHttp2) {
  EXPECT_EQ(watch_.Pass("PRI * HTT", known_, now_), 0u);
  EXPECT_EQ(Fault(), "");
  EXPECT_FALSE(watch_.speaks());
  EXPECT_EQ(watch_.Pass("GET / HTTP/1.1\r\n", known_, now_), 0u);
  EXPECT_EQ(Fault(), "not_http2");
}

TEST_F(FrameWatchTest, StreamsThatAreResetAtOnceEndTheConnection) {
  Greet();
  int resets = 0;
  for (int i = 0; i < 1'000 && Fault().empty(); ++i) {
    now_ += absl::Milliseconds(5);
    if (Send(Headers(2 * i + 1)) && Send(Reset(2 * i + 1))) ++resets;
  }
  EXPECT_EQ(Fault(), "rst_stream");
  EXPECT_LT(resets, 300);
}

TEST_F(FrameWatchTest, AClientThatGivesUpCallsNowAndThenGoesOn) {
  known_ = true;
  Greet();
  // Ten calls a second for half an hour, every one cancelled.
  for (int i = 0; i < 18'000; ++i) {
    now_ += absl::Milliseconds(100);
    ASSERT_TRUE(Send(Headers(2 * i + 1)) && Send(Reset(2 * i + 1))) << i << Fault();
  }
}

TEST_F(FrameWatchTest, AHeaderBlockMustEnd) {
  Greet();
  ASSERT_TRUE(Send(Headers(1, 0)));
  EXPECT_LE(SendMany(Continuation(1, 0, 0), 1'000), kMostContinuations);
  EXPECT_EQ(Fault(), "continuation");
}

TEST_F(FrameWatchTest, AHeaderBlockHasALength) {
  Greet();
  ASSERT_TRUE(Send(Headers(1, 0)));
  EXPECT_EQ(SendMany(Continuation(1, 0, 16'000), 1'000), 4);
  EXPECT_EQ(Fault(), "continuation");
}

TEST_F(FrameWatchTest, AnHonestHeaderBlockMayHaveContinuations) {
  Greet();
  ASSERT_TRUE(Send(Headers(1, 0)));
  ASSERT_TRUE(Send(Continuation(1, 0, 16'000)));
  ASSERT_TRUE(Send(Continuation(1, 4, 16'000)));
  EXPECT_TRUE(Send(Data(0, 10)));
}

TEST_F(FrameWatchTest, NothingComesBetweenTheFramesOfABlock) {
  Greet();
  ASSERT_TRUE(Send(Headers(1, 0)));
  EXPECT_FALSE(Send(FrameOf(6, 0, 0, 8)));
  EXPECT_EQ(Fault(), "continuation");
}

TEST_F(FrameWatchTest, FramesThatWantAnAnswerAreCounted) {
  const std::pair<std::string, std::string> floods[] = {
      {FrameOf(4, 0, 0, 0), "settings"}, {FrameOf(6, 0, 0, 8), "ping"}, {Data(0, 0), "empty_data"}};
  for (const auto& [frame, fault] : floods) {
    FrameWatch watch(&strangers_);
    ASSERT_EQ(watch.Pass(kGreeting, known_, now_), sizeof kGreeting - 1);
    int passed = 0;
    while (passed < 10'000 && watch.Pass(frame, known_, now_) == frame.size()) ++passed;
    EXPECT_LE(passed, 200) << fault;
    ASSERT_NE(watch.fault(), nullptr);
    EXPECT_EQ(watch.fault(), fault);
  }
}

TEST_F(FrameWatchTest, AControlFrameIsSmall) {
  Greet();
  EXPECT_EQ(watch_.Pass(FrameOf(1, 4, 1, 70'000).substr(0, 9), known_, now_), 0u);
  EXPECT_EQ(Fault(), "frame_size");
}

TEST_F(FrameWatchTest, ManyStreamsWaitAndGoOn) {
  Greet();
  const int at_once = SendMany(Headers(1), 1'000);
  EXPECT_EQ(at_once, 1 + static_cast<int>(kStrangersFrames.streams_burst));
  EXPECT_TRUE(watch_.waits());
  EXPECT_EQ(Fault(), "");
  now_ += absl::Seconds(1);
  EXPECT_EQ(SendMany(Headers(1), 1'000), static_cast<int>(kStrangersFrames.streams));
  EXPECT_EQ(Fault(), "");
  known_ = true;  // its token was good
  EXPECT_EQ(SendMany(Headers(1), 10'000), static_cast<int>(kKnownFrames.streams_burst));
}

TEST_F(FrameWatchTest, AFloodOfOthersDoesNotKeepTheFirstCallOfAClient) {
  while (strangers_.Take(now_)) {
  }
  Greet();
  EXPECT_TRUE(Send(Headers(1)));
  EXPECT_FALSE(Send(Headers(3)));
  EXPECT_TRUE(watch_.waits());
}

TEST_F(FrameWatchTest, CountsTheStreamsThatAStrangerHasNotEnded) {
  Greet();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Send(Headers(2 * i + 1))) << i;
  EXPECT_EQ(watch_.open_streams(), 10u);
  // One answer ends, in crumbs, and one goes on.
  for (const char byte : FrameOf(0, 0, 1, 100) + FrameOf(0, 0, 3, 100) + FrameOf(1, 5, 1, 20)) {
    watch_.NoteAnswer({&byte, 1}, known_);
  }
  EXPECT_EQ(watch_.open_streams(), 9u);
  watch_.NoteAnswer(Reset(3), known_);
  EXPECT_EQ(watch_.open_streams(), 8u);
  EXPECT_TRUE(Send(Reset(5)) && Send(Reset(5)));
  EXPECT_EQ(watch_.open_streams(), 7u);
  known_ = true;  // its token was good
  watch_.NoteAnswer(Data(0, 1), known_);
  EXPECT_EQ(watch_.open_streams(), 0u);
}

TEST_F(FrameWatchTest, ACallerOfTheUnixSocketOnlyHasToSpeakHttp2) {
  FrameWatch local(nullptr);
  EXPECT_EQ(local.Pass("PRI * HT", known_, now_), 0u);
  std::string all = kGreeting;
  for (int i = 0; i < 10'000; ++i) all += Headers(2 * i + 1) + Reset(2 * i + 1);
  EXPECT_EQ(local.Pass(all, known_, now_), all.size());
  EXPECT_EQ(local.open_streams(), 0u);
  EXPECT_FALSE(local.waits());
  FrameWatch other(nullptr);
  EXPECT_EQ(other.Pass("GET / HTTP/1.1\r\n", known_, now_), 0u);
  EXPECT_STREQ(other.fault(), "not_http2");
}

TEST_F(FrameWatchTest, MessagesInCrumbsWait) {
  Greet();
  EXPECT_LE(SendMany(Data(0, 1), 100'000), static_cast<int>(kStrangersFrames.small_burst));
  EXPECT_TRUE(watch_.waits());
  EXPECT_EQ(Fault(), "");
}

}  // namespace
}  // namespace nsa::server
