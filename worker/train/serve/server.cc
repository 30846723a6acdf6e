#include "worker/train/serve/server.h"

#include <optional>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/train/serve/chat_page.h"
#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

constexpr char kJson[] = "application/json";
constexpr char kModelsPath[] = "/v1/models/";
constexpr char kCompletionsPath[] = "/v1/completions";
constexpr char kChatPath[] = "/v1/chat/completions";
// How long a request waits before it looks whether its client is still there.
constexpr absl::Duration kLook = absl::Milliseconds(100);

// Counts the bytes of a body as long as it lives.
class BodyShare {
 public:
  BodyShare(std::atomic<size_t>* all, size_t bytes) : all_(*all), bytes_(bytes) {
    fits_ = all_.fetch_add(bytes) + bytes <= kBodiesBytes;
  }
  ~BodyShare() { all_.fetch_sub(bytes_); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  bool fits() const { return fits_; }

 private:
  std::atomic<size_t>& all_;
  const size_t bytes_;
  bool fits_ = false;
};

absl::Status CheckJsonType(const char* type) {
  const std::string_view given = type == nullptr ? "" : type;
  const std::string_view media = given.substr(0, given.find_first_of("; "));
  if (absl::EqualsIgnoreCase(absl::string_view(media.data(), media.size()), kJson)) {
    return absl::OkStatus();
  }
  return HttpError(415,
                   "Content-Type: not application/json; send the header 'Content-Type: "
                   "application/json'");
}

absl::Status WrongMethod(const std::string& path, const char* wanted) {
  return HttpError(405, absl::StrCat("method: ", path, " takes ", wanted, "; use it"));
}

// 32 hexadecimal digits that nobody can guess.
std::string RandomId() {
  std::random_device device;
  return absl::StrFormat("%08x%08x%08x%08x", device(), device(), device(), device());
}

}  // namespace

absl::StatusOr<std::unique_ptr<CompletionServer>> CompletionServer::Start(
    const TrainedModel* trained, const Clock* clock, const ServerOptions& options) {
  NSA_ASSIGN_OR_RETURN(const Listen listen, ReadListen(options.listen));
  NSA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(trained, options.engine));
  std::unique_ptr<CompletionServer> server(
      new CompletionServer(*trained, clock, std::move(engine), options.threads));
  server->host_ = listen.host;
  NSA_ASSIGN_OR_RETURN(server->http_,
                       HttpServer::Start(listen, [server = server.get()](HttpExchange& http) {
                         server->Handle(http);
                       }));
  return server;
}

CompletionServer::CompletionServer(const TrainedModel& trained, const Clock* clock,
                                   std::unique_ptr<Engine> engine, int threads)
    : clock_(*clock),
      model_(trained.spec().name().empty() ? "model" : trained.spec().name()),
      created_(absl::ToUnixSeconds(clock->Wall())),
      engine_(std::move(engine)),
      thread_(engine_->batch(), threads) {}

CompletionServer::~CompletionServer() {
  draining_ = true;
  thread_.End();
}

std::string CompletionServer::url() const {
  return absl::StrCat("http://", host_, ":", http_->port());
}

void CompletionServer::Drain(absl::Duration patience) {
  draining_ = true;
  thread_.End();
  const absl::Duration begun = clock_.Monotonic();
  const MutexLock lock(&mutex_);
  while (requests_ > 0 && clock_.Monotonic() - begun < patience) {
    answered_.WaitFor(&mutex_, patience - (clock_.Monotonic() - begun));
  }
}

void CompletionServer::Handle(HttpExchange& http) {
  {
    const MutexLock lock(&mutex_);
    ++requests_;
  }
  if (const absl::Status status = Dispatch(http); !status.ok()) {
    http.Answer(HttpStatusOf(status), kJson, ErrorJson(status));
  }
  const MutexLock lock(&mutex_);
  --requests_;
  answered_.SignalAll();
}

// Answers, or returns an error to answer with.
absl::Status CompletionServer::Dispatch(HttpExchange& http) {
  const std::string method = http.method();
  std::string path = http.path();
  // The page is the same for everybody, so a link from elsewhere may lead to it.
  const bool page = method == "GET" && path == "/";
  NSA_RETURN_IF_ERROR(
      CheckOrigins({.host = http.header("Host"),
                    .origin = page ? nullptr : http.header("Origin"),
                    .sec_fetch_site = page ? nullptr : http.header("Sec-Fetch-Site")}));
  if (path.size() > 1 && path.back() == '/') path.pop_back();  // as some clients write it
  if (draining_) return absl::UnavailableError("the server is shutting down");
  if (path == kCompletionsPath || path == kChatPath) {
    if (method != "POST") return WrongMethod(path, "POST");
    return Complete(http, path == kChatPath ? Api::kChat : Api::kCompletions);
  }
  const bool model = absl::StartsWith(path, kModelsPath);
  if (path != "/" && path != "/healthz" && path != "/metrics" && path != "/v1/models" && !model) {
    return HttpError(404,
                     "path: unknown (/, /healthz, /metrics, /v1/models, /v1/completions, "
                     "/v1/chat/completions); use one of these");
  }
  if (method != "GET") return WrongMethod(path, "GET");
  if (path == "/") {
    http.Answer(200, "text/html; charset=utf-8", kChatPage,
                absl::StrCat("Content-Security-Policy: ", ChatPagePolicy(),
                             "\r\nReferrer-Policy: no-referrer\r\n"
                             "Cross-Origin-Resource-Policy: same-origin\r\n"));
  } else if (path == "/healthz") {
    http.Answer(200, "text/plain; charset=utf-8", "ok\n");
  } else if (path == "/metrics") {
    http.Answer(200, "text/plain; version=0.0.4; charset=utf-8",
                metrics_.Text(thread_.load(), engine_->slots()));
  } else if (path == "/v1/models") {
    http.Answer(200, kJson, ModelsJson(model_, created_));
  } else if (path.substr(sizeof(kModelsPath) - 1) == model_) {
    http.Answer(200, kJson, ModelJson(model_, created_));
  } else {
    return absl::NotFoundError(absl::StrCat("model: not served here (", model_, "); use that one"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CompletionRequest> CompletionServer::Parse(const std::string& body, Api api) {
  const MutexLock lock(&parsing_);
  return ReadRequest(body, api);
}

absl::StatusOr<Task> CompletionServer::ReadTask(HttpExchange& http, Api api) {
  NSA_RETURN_IF_ERROR(CheckJsonType(http.header("Content-Type")));
  NSA_ASSIGN_OR_RETURN(const size_t bytes, http.BodyBytes(kBodyBytes));
  const BodyShare share(&bodies_, bytes);
  if (!share.fits()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "bodies: more than %d bytes of all requests are being read (at most %d); send this "
        "one again later",
        kBodiesBytes, kBodiesBytes));
  }
  NSA_ASSIGN_OR_RETURN(const std::string body, http.ReadBody(kBodyBytes));
  NSA_ASSIGN_OR_RETURN(CompletionRequest request, Parse(body, api));
  if (!request.model.empty() && request.model != model_) {
    return absl::NotFoundError(absl::StrCat("model: '", request.model, "' is not served here (",
                                            model_, "); use that one or leave it out"));
  }
  return engine_->Prepare(std::move(request));
}

AnswerHead CompletionServer::HeadOf(const CompletionRequest& request) {
  return {.chat = request.chat(),
          .id = absl::StrCat(request.chat() ? "chatcmpl-" : "cmpl-", RandomId()),
          .created = absl::ToUnixSeconds(clock_.Wall()),
          .model = model_,
          .logprobs = request.logprobs.has_value(),
          .top_logprobs = request.logprobs.value_or(0)};
}

absl::Status CompletionServer::Complete(HttpExchange& http, Api api) {
  Request request{.http = http, .api = api, .arrived = clock_.Monotonic()};
  absl::Status status = Answer(&request);
  if (!status.ok()) request.code = HttpStatusOf(status);
  metrics_.Ended(request.code, clock_.Monotonic() - request.arrived);
  return status;
}

absl::Status CompletionServer::Answer(Request* request) {
  NSA_ASSIGN_OR_RETURN(Task task, ReadTask(request->http, request->api));
  const AnswerHead head = HeadOf(task.request);
  const auto call = std::make_shared<Call>(std::move(task));
  NSA_RETURN_IF_ERROR(thread_.Add(call));
  absl::Status status = call->task().request.stream ? AnswerStream(request, head, call.get())
                                                    : AnswerWhole(request, head, call.get());
  thread_.Leave(call);
  if (call->ended() && call->result().ok()) {
    const absl::Duration now = clock_.Monotonic();
    metrics_.Answered(*call->result(), now - request->spoken.value_or(now));
  }
  return status;
}

// The next piece, if one comes soon.
std::optional<AnswerPiece> CompletionServer::Take(Request* request, Call* call) {
  std::optional<AnswerPiece> piece = call->Take(kLook);
  if (piece.has_value() && !request->spoken) {
    request->spoken = clock_.Monotonic();
    metrics_.FirstPiece(*request->spoken - request->arrived);
  }
  if (request->http.gone()) request->code = Metrics::kClientGone;
  return piece;
}

absl::Status CompletionServer::AnswerWhole(Request* request, const AnswerHead& head, Call* call) {
  WholeAnswer answer;
  while (!call->ended()) {
    if (std::optional<AnswerPiece> piece = Take(request, call); piece.has_value()) {
      answer.Add(*std::move(piece));
    }
    if (request->code == Metrics::kClientGone) return absl::OkStatus();
  }
  NSA_ASSIGN_OR_RETURN(const Usage usage, call->result());
  request->http.Answer(200, kJson, answer.Text(head, usage));
  return absl::OkStatus();
}

// Sends each piece as it comes. An error before the first is an answer of its own; a later one is
// the last event.
absl::Status CompletionServer::AnswerStream(Request* request, const AnswerHead& head, Call* call) {
  HttpExchange& http = request->http;
  const bool include_usage = call->task().request.include_usage;
  bool begun = false;
  std::set<int32_t> speaking;  // choices of a chat
  const auto send = [&](const std::string& part) {
    const bool sent = http.SendPart(part);
    if (!sent) request->code = Metrics::kClientGone;
    return sent;
  };
  while (!call->ended()) {
    const std::optional<AnswerPiece> piece = Take(request, call);
    if (request->code == Metrics::kClientGone) return absl::OkStatus();
    if (!piece.has_value()) continue;
    if (!begun && !http.BeginStream("text/event-stream; charset=utf-8")) {
      request->code = Metrics::kClientGone;
      return absl::OkStatus();
    }
    begun = true;
    if (head.chat && speaking.insert(piece->choice).second &&
        !send(RoleEvent(head, piece->choice, include_usage))) {
      return absl::OkStatus();
    }
    if (!send(PieceEvent(head, *piece, include_usage))) return absl::OkStatus();
  }
  const absl::StatusOr<Usage> usage = call->result();
  if (!begun) return usage.status();
  if (!usage.ok()) {
    request->code = HttpStatusOf(usage.status());
    http.SendPart(ErrorEvent(usage.status()));
  } else {
    if (include_usage) send(UsageEvent(head, *usage));
    send(kDoneEvent);
  }
  http.EndStream();
  return absl::OkStatus();
}

}  // namespace nsa::train::serve
