// The server of nsa-worker serve: OpenAI's completions and chat for programs of this machine.
//
//   GET /                         a page to chat in a browser
//   GET /healthz                  "ok", or 503 once the server is ending
//   GET /metrics                  metrics.h
//   GET /v1/models                the one model, by the name of its job
//   GET /v1/models/NAME           the same alone
//   POST /v1/completions          request.h has the parameters of both, answer.h what comes back
//   POST /v1/chat/completions
//
// A path may end with a slash.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/train/score/trained_model.h"
#include "worker/train/serve/engine.h"
#include "worker/train/serve/http.h"
#include "worker/train/serve/metrics.h"
#include "worker/train/serve/model_thread.h"

namespace nsa::train::serve {

struct ServerOptions {
  std::string listen = "127.0.0.1:8000";  // port 0: a free one
  EngineOptions engine;
  int threads = 0;  // of the kernels; 0: all cores
};

class CompletionServer {
 public:
  // `trained` and `clock` outlive the server. InvalidArgument for an address that is not on
  // loopback, Unavailable when the port is taken; the errors of Engine::Create().
  static absl::StatusOr<std::unique_ptr<CompletionServer>> Start(const TrainedModel* trained,
                                                                 const Clock* clock,
                                                                 const ServerOptions& options);
  // Drains, and waits for what HttpServer and ModelThread wait for.
  ~CompletionServer();

  // "http://127.0.0.1:8000", with the actual port.
  std::string url() const;
  const std::string& model() const { return model_; }
  const Engine& engine() const { return *engine_; }

  // Answers every request with 503 from now on, also those that wait or are computed; a stream ends
  // with an error. Returns once all were answered, at the latest after `patience`.
  void Drain(absl::Duration patience);

 private:
  CompletionServer(const TrainedModel& trained, const Clock* clock, std::unique_ptr<Engine> engine,
                   int threads);

  void Handle(HttpExchange& http);
  absl::Status Dispatch(HttpExchange& http);
  // A request for completions, as metrics count it.
  struct Request {
    HttpExchange& http;
    Api api;
    absl::Duration arrived;  // monotonic
    int code = 200;
    std::optional<absl::Duration> spoken;  // when the first part of the text was there
  };
  absl::Status Complete(HttpExchange& http, Api api);
  absl::Status Answer(Request* request);
  absl::StatusOr<Task> ReadTask(HttpExchange& http, Api api);
  absl::StatusOr<CompletionRequest> Parse(const std::string& body, Api api);
  absl::Status AnswerWhole(Request* request, const AnswerHead& head, Call* call);
  absl::Status AnswerStream(Request* request, const AnswerHead& head, Call* call);
  std::optional<AnswerPiece> Take(Request* request, Call* call);
  AnswerHead HeadOf(const CompletionRequest& request);

  const Clock& clock_;
  const std::string model_;
  const int64_t created_;  // the start of the server
  const std::unique_ptr<Engine> engine_;
  ModelThread thread_;
  Metrics metrics_;
  std::atomic<bool> draining_ = false;
  std::atomic<uint64_t> answers_ = 0;
  std::atomic<size_t> bodies_ = 0;  // bytes of the bodies that are read or wait to be
  std::string host_;

  Mutex parsing_;  // one body at a time is JSON, which takes more memory than its bytes

  Mutex mutex_;
  CondVar answered_;
  int requests_ ABSL_GUARDED_BY(mutex_) = 0;  // that were not answered

  std::unique_ptr<HttpServer> http_;  // last: its threads use the rest
};

}  // namespace nsa::train::serve
