#include "common/run/control_socket.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

v1::ControlRequest Ping() {
  v1::ControlRequest request;
  request.mutable_ping();
  return request;
}

v1::ControlReply AtStep(int64_t step) {
  v1::ControlReply reply;
  reply.set_step(step);
  return reply;
}

// Addresses, connections and listeners without the code under test. The path must be short.
sockaddr_un Address(const std::filesystem::path& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

Fd ConnectTo(const std::filesystem::path& path) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = Address(path);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return fd;
}

Fd ListenOn(const std::filesystem::path& path, int backlog) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = Address(path);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(listen(fd.get(), backlog), 0);
  return fd;
}

TEST(ControlSocket, AnswersARequest) {
  const TempDir folder;
  const auto server = ControlServer::Start(folder / "s", [](const v1::ControlRequest& request) {
    return AtStep(request.stop().at_step() + 1);
  });
  ASSERT_OK(server);
  v1::ControlRequest request;
  request.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  request.mutable_stop()->set_at_step(41);
  for (int again = 0; again < 3; ++again) {
    const auto reply = ControlCall(folder / "s", request, absl::Seconds(5));
    ASSERT_OK(reply);
    EXPECT_EQ(reply->step(), 42);
  }
}

TEST(ControlSocket, PathsMayBeLongerThanASocketAddress) {
  const TempDir folder;
  auto deep = folder.path();
  for (int i = 0; i < 10; ++i) deep /= std::string(40, 'd');
  std::filesystem::create_directories(deep);
  const auto server =
      ControlServer::Start(deep / "control.sock", [](const auto&) { return AtStep(7); });
  ASSERT_OK(server);
  const auto reply = ControlCall(deep / "control.sock", Ping(), absl::Seconds(5));
  ASSERT_OK(reply);
  EXPECT_EQ(reply->step(), 7);
}

TEST(ControlSocket, ReplacesAStaleFileAndIsItsUsersAlone) {
  const TempDir folder;
  std::ofstream(folder / "s") << "stale";
  const auto server = ControlServer::Start(folder / "s", [](const auto&) { return AtStep(1); });
  ASSERT_OK(server);
  EXPECT_OK(ControlCall(folder / "s", Ping(), absl::Seconds(5)));
  struct stat info = {};
  ASSERT_EQ(stat((folder / "s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0077, 0U);
}

TEST(ControlSocket, NobodyThereIsUnavailable) {
  const TempDir folder;
  EXPECT_THAT(ControlCall(folder / "none", Ping(), absl::Seconds(5)),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(ControlCall(folder / "no-folder" / "s", Ping(), absl::Seconds(5)),
              StatusIs(absl::StatusCode::kUnavailable));
  {
    ASSERT_OK(ControlServer::Start(folder / "s", [](const auto&) { return AtStep(1); }));
  }
  EXPECT_THAT(ControlCall(folder / "s", Ping(), absl::Seconds(5)),
              StatusIs(absl::StatusCode::kUnavailable))
      << "the server is gone, its file is still there";
}

TEST(ControlSocket, APeerThatNeverAnswersIsDeadlineExceededInTime) {
  const TempDir folder;
  const Fd listener = ListenOn(folder / "s", 0);
  const absl::Duration start = RealClock().Monotonic();
  // The first caller waits for a reply. When the backlog is full, later callers wait for a
  // connection.
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&folder] {
      EXPECT_THAT(ControlCall(folder / "s", Ping(), absl::Milliseconds(200)),
                  StatusIs(absl::StatusCode::kDeadlineExceeded));
    });
  }
  for (std::thread& caller : callers) caller.join();
  const absl::Duration took = RealClock().Monotonic() - start;
  EXPECT_GE(took, absl::Milliseconds(200));
  EXPECT_LT(took, absl::Seconds(3));
}

TEST(ControlSocket, AnOversizeReplyIsDataLoss) {
  const TempDir folder;
  const Fd listener = ListenOn(folder / "s", 4);
  std::thread peer([&listener] {
    const Fd fd(accept(listener.get(), nullptr, nullptr));
    const uint32_t length = 65537;
    EXPECT_EQ(write(fd.get(), &length, sizeof length), 4);
    char c = 0;
    while (read(fd.get(), &c, 1) > 0) {
    }
  });
  EXPECT_THAT(ControlCall(folder / "s", Ping(), absl::Seconds(5)),
              StatusIs(absl::StatusCode::kDataLoss));
  peer.join();
}

TEST(ControlSocket, AnOversizeRequestIsNotSent) {
  const TempDir folder;
  const auto server = ControlServer::Start(folder / "s", [](const auto&) { return AtStep(1); });
  ASSERT_OK(server);
  v1::ControlRequest request = Ping();
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
      99, std::string(65537, 'x'));
  EXPECT_THAT(ControlCall(folder / "s", request, absl::Seconds(5)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ControlSocket, HangsUpOnAnOversizeFrameAndOnGarbage) {
  const TempDir folder;
  const auto server = ControlServer::Start(folder / "s", [](const auto&) { return AtStep(1); });
  ASSERT_OK(server);
  const std::string frames[] = {std::string("\xff\xff\xff\xff", 4), std::string("\1\0\0\0\xff", 5)};
  for (const std::string& frame : frames) {
    const Fd fd = ConnectTo(folder / "s");
    ASSERT_EQ(write(fd.get(), frame.data(), frame.size()), static_cast<ssize_t>(frame.size()));
    char c = 0;
    EXPECT_LE(read(fd.get(), &c, 1), 0);  // end of file or a reset
  }
  EXPECT_OK(ControlCall(folder / "s", Ping(), absl::Seconds(5)));
}

TEST(ControlSocket, ASilentPeerHoldsUpOthersForAboutASecondOnly) {
  const TempDir folder;
  const auto server = ControlServer::Start(folder / "s", [](const auto&) { return AtStep(1); });
  ASSERT_OK(server);
  const Fd silent = ConnectTo(folder / "s");
  EXPECT_OK(ControlCall(folder / "s", Ping(), absl::Seconds(10)));
}

TEST(ControlSocket, EndsAtOnceThoughAPeerIsSilent) {
  const TempDir folder;
  auto server = ControlServer::Start(folder / "s", [](const auto&) { return AtStep(1); });
  ASSERT_OK(server);
  const Fd silent = ConnectTo(folder / "s");
  const absl::Duration start = RealClock().Monotonic();
  server->reset();
  EXPECT_LT(RealClock().Monotonic() - start, absl::Milliseconds(800));
}

}  // namespace
}  // namespace nsa
