// A server with a small model, and requests to it over sockets.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/net/http_get.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/score/small_trained.h"
#include "worker/train/serve/server.h"

namespace nsa::train::serve {

inline constexpr char kCompletions[] = "/v1/completions";
inline constexpr char kChat[] = "/v1/chat/completions";

inline constexpr int32_t kContext = 128;

// Takes half a minute.
inline constexpr char kEndless[] = R"({"prompt": "a", "max_tokens": 262143})";

class RunningServer {
 protected:
  // With one slot, requests are computed one after another.
  static void Start(int32_t slots = 1) {
    dir_ = std::make_unique<TempDir>();
    trained_ = SmallModel(*dir_);
    auto started = CompletionServer::Start(
        trained_.get(), &clock_,
        {.listen = "127.0.0.1:0", .engine = {.context = kContext, .slots = slots}, .threads = 1});
    ASSERT_OK(started);
    server_ = *std::move(started);
    address_ = server_->url().substr(sizeof("http://") - 1);
  }
  static void End() {
    server_.reset();
    trained_.reset();
    dir_.reset();
  }

  static std::string Header(const std::string& line) {
    return absl::StrCat(line, "\r\nHost: ", address_, "\r\n");
  }

  static std::string Request(const std::string& body, const std::string& headers = "",
                             const std::string& version = "1.1",
                             const std::string& path = kCompletions) {
    return absl::StrCat(Header(absl::StrCat("POST ", path, " HTTP/", version)), headers,
                        "Content-Type: application/json\r\nContent-Length: ", body.size(),
                        "\r\n\r\n", body);
  }

  static std::string Send(const std::string& bytes) { return HttpRead(HttpSend(address_, bytes)); }
  static std::string Get(const std::string& path) {
    return Send(Header(absl::StrCat("GET ", path, " HTTP/1.1")) + "\r\n");
  }
  static std::string Post(const std::string& body) { return Send(Request(body)); }
  static std::string Chat(const std::string& body) { return Send(Request(body, "", "1.1", kChat)); }

  static int StatusOf(const std::string& answer) {
    return answer.size() < 12 ? 0 : std::stoi(answer.substr(9, 3));
  }
  static std::string BodyOf(const std::string& answer) {
    const size_t end = answer.find("\r\n\r\n");
    return end == std::string::npos ? "" : answer.substr(end + 4);
  }
  // The error of an answer with this status.
  static nlohmann::json ErrorOf(const std::string& answer, int status) {
    EXPECT_EQ(StatusOf(answer), status) << answer.substr(0, 300);
    const auto body = nlohmann::json::parse(BodyOf(answer), nullptr, false);
    EXPECT_TRUE(body.is_object()) << answer.substr(0, 300);
    return body.is_object() ? body["error"] : nlohmann::json::object();
  }
  // Whether the model is free: it answers a short request.
  static bool Free() { return StatusOf(Post(R"({"prompt": "a", "max_tokens": 1})")) == 200; }
  // Whether all slots compute something long: a short request gets no answer in a third of a
  // second.
  static bool Busy() {
    const Fd probe = HttpSend(address_, Request(R"({"prompt": "a", "max_tokens": 1})"));
    const timeval soon{.tv_sec = 0, .tv_usec = 300'000};
    setsockopt(probe.get(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
    return HttpRead(probe).empty();
  }
  // Connections with requests that never end; the first is computed, with one slot.
  static std::vector<Fd> Occupy(size_t count) {
    std::vector<Fd> all;
    for (size_t i = 0; i < count; ++i) all.push_back(HttpSend(address_, Request(kEndless)));
    return all;
  }

  static inline const RealClock clock_;
  static inline std::unique_ptr<TempDir> dir_;
  static inline std::unique_ptr<TrainedModel> trained_;
  static inline std::unique_ptr<CompletionServer> server_;
  static inline std::string address_;
};

}  // namespace nsa::train::serve
