// nsactl chat: talk to a trained model in the terminal, or line by line through a pipe. It speaks
// HTTP to a server: one that runs, or an nsa-worker of its own. A coordinator is asked only for the
// out_dir of a job.
#include <istream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/model/chat_client.h"
#include "client/commands/model/device.h"
#include "client/commands/model/find_model.h"
#include "client/commands/model/model_server.h"
#include "client/commands/model/number_flag.h"
#include "client/commands/model/run_program.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

using nlohmann::json;

struct ChatFlags {
  std::string device = kDefaultDevice;
  std::string target, url, system, temperature;
  int64_t max_tokens = 0;
  int context = 0;
};

constexpr char kHelp[] =
    "/reset begins a new conversation, /system TEXT tells the model how to answer (without TEXT: "
    "nothing), /exit ends;\na line with // in front begins with a slash. Ctrl-C stops an answer, "
    "Ctrl-D ends.";

json MessageOf(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

// A conversation, line by line.
class Conversation {
 public:
  Conversation(Session* session, ChatClient* client, json request, std::string system)
      : session_(*session),
        client_(*client),
        request_(std::move(request)),
        system_(std::move(system)),
        asks_(session->console().can_ask) {}

  // Until the end of the input or /exit. Where nobody sits in front of it the first error ends it.
  absl::StatusOr<ExitCode> Run() {
    for (std::string line; ReadLine(&line);) {
      const std::string text(absl::StripAsciiWhitespace(line));
      if (text.empty()) continue;
      if (text == "/exit") break;
      const absl::Status status = Take(text);
      if (status.ok()) continue;
      if (!asks_ || absl::IsCancelled(status)) return status;
      *session_.console().err << "nsactl: " << CleanText(std::string(status.message())) << "\n";
    }
    return ExitCode::kOk;
  }

 private:
  bool ReadLine(std::string* line) {
    if (asks_) *session_.console().err << "> " << std::flush;
    if (std::getline(*session_.console().in, *line)) return true;
    if (asks_) *session_.console().err << "\n";
    return false;
  }

  absl::Status Take(const std::string& text) {
    if (text.starts_with("//")) return Ask(text.substr(1));
    if (!text.starts_with('/')) return Ask(text);
    const size_t space = text.find(' ');
    const std::string command = text.substr(0, space);
    if (command == "/reset") {
      talk_.clear();
    } else if (command == "/system") {
      system_ = space == std::string::npos ? "" : text.substr(space + 1);
    } else if (command == "/help") {
      session_.Note(kHelp);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(command,
                       ": unknown (/reset, /system TEXT, /exit, /help); put a slash in "
                       "front to send it"));
    }
    return absl::OkStatus();
  }

  json Messages(const std::string& question) const {
    json messages = json::array();
    if (!system_.empty()) messages.push_back(MessageOf("system", system_));
    for (const json& message : talk_) messages.push_back(message);
    messages.push_back(MessageOf("user", question));
    return messages;
  }

  // Prints the answer. What has been read of it stays in the conversation, also if it was stopped;
  // after an error the question may be asked again.
  absl::Status Ask(const std::string& question) {
    request_["messages"] = Messages(question);
    const bool terminal = session_.console().terminal;
    bool begun = false;
    const auto asked = client_.Ask(request_, [&](std::string_view text) {
      begun = true;
      session_.out() << (terminal ? CleanText(text) : std::string(text)) << std::flush;
    });
    // An error stands on a line of its own behind the part of the answer.
    if (asked.ok() || begun) session_.out() << "\n" << std::flush;
    NSA_RETURN_IF_ERROR(asked.status());
    const ChatAnswer& answer = *asked;
    if (!absl::StripAsciiWhitespace(answer.text).empty()) {
      talk_.push_back(MessageOf("user", question));
      talk_.push_back(MessageOf("assistant", answer.text));
    } else if (!answer.finish_reason.empty()) {
      session_.Note("(The answer is empty; the question is left out of the conversation.)");
    }
    if (answer.finish_reason.empty() && !(asks_ && session_.interrupt().ForgetCtrlC())) {
      return absl::CancelledError("interrupted");
    }
    if (answer.finish_reason == "length") {
      session_.Note("(Cut off: --max-tokens, or the context is full; /reset begins anew.)");
    }
    return absl::OkStatus();
  }

  Session& session_;
  ChatClient& client_;
  json request_;
  std::string system_;
  const bool asks_;  // somebody sits in front of it
  std::vector<json> talk_;
};

absl::Status Check(const Session& session, const ChatFlags& flags) {
  NSA_RETURN_IF_ERROR(RefuseStructured(session, "chat"));
  NSA_RETURN_IF_ERROR(CheckDevice(flags.device));
  NSA_RETURN_IF_ERROR(CheckTemperature(flags.temperature));
  if (flags.target.empty() != flags.url.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      flags.url.empty()
          ? "CHECKPOINT|JOB: missing (a model, or --url); name one of them"
          : "--url: set beside CHECKPOINT|JOB (either names the model); leave one out");
}

absl::StatusOr<ExitCode> Chat(Session& session, const ChatFlags& flags) {
  NSA_RETURN_IF_ERROR(Check(session, flags));
  std::string url = flags.url;
  std::unique_ptr<ModelServer> server;
  if (url.empty()) {
    NSA_ASSIGN_OR_RETURN(const std::string model, FindModel(session, flags.target));
    NSA_ASSIGN_OR_RETURN(server, ModelServer::Start(WorkerOf(flags.device), flags.device, model,
                                                    flags.context, &session.interrupt()));
    url = server->url();
  }
  ChatClient client(url, &session.interrupt());
  NSA_ASSIGN_OR_RETURN(const std::string model, client.Model());
  json request = {{"model", model}};
  double temperature = 0.8;
  if (!flags.temperature.empty()) (void)absl::SimpleAtod(flags.temperature, &temperature);
  request["temperature"] = temperature;
  if (flags.max_tokens > 0) request["max_tokens"] = flags.max_tokens;
  if (session.console().can_ask) session.Note(absl::StrCat("Talking to ", model, ". ", kHelp));
  return Conversation(&session, &client, std::move(request), flags.system).Run();
}

}  // namespace

void AddChat(Cli* cli) {
  const auto flags = std::make_shared<ChatFlags>();
  Options options = cli->Add(
      {.name = "chat",
       .what = "Talk to a trained model",
       .group = "Models",
       .more =
           "Loads the model on this machine, by nsa-worker or nsa-worker-cuda beside this "
           "program, or asks a server that\nruns (--url). Each line is a message; answers appear "
           "as they are written. In a terminal Ctrl-C stops an answer and\nCtrl-D ends; /reset, "
           "/system TEXT and /exit are commands. Through a pipe the answers are all that "
           "standard output gets.",
       .examples = "nsactl chat ./out\n"
                   "nsactl chat my-job --system \"Answer in one sentence.\" --device cuda\n"
                   "nsactl chat --url http://127.0.0.1:8000\n"
                   "echo \"What is a cell?\" | nsactl chat ./out --temperature 0",
       .run = [flags](Session& session) { return Chat(session, *flags); }});
  options.OptionalArgument("CHECKPOINT|JOB", &flags->target, kModelArgument);
  options.Text("--url", "URL", &flags->url,
               "A server of OpenAI's chat API, e.g. `nsactl serve`, instead of a model of its own");
  options.Text("--system", "TEXT", &flags->system, "A system message before the conversation");
  options.Text("--temperature", "X", &flags->temperature,
               "Divides the logits; 0 takes the likeliest token (default: 0.8)");
  options.Number("--max-tokens", &flags->max_tokens, {.least = 1, .most = 262'144},
                 "Tokens of an answer at most (default: what the context has room for)");
  options.Number("--context", &flags->context, {.least = 0, .most = 1'048'576},
                 "Tokens that the model sees at most (default: 0, the job's train.seq_len)");
  AddDevice(&options, &flags->device);
}

}  // namespace nsa::client
