#include "client/connect/session.h"

#include "absl/strings/str_cat.h"
#include "client/connect/endpoint.h"
#include "client/show/document.h"
#include "common/base/clean_text.h"
#include "common/base/environment.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {

bool Session::colours() const {
  return console_.terminal && !flags_.no_color && Environment("NO_COLOR").empty() &&
         Environment("TERM") != "dumb";
}

absl::StatusOr<Client*> Session::client() {
  if (client_ == nullptr) {
    NSA_ASSIGN_OR_RETURN(const Endpoint endpoint, ResolveEndpoint(flags_.address, flags_.context));
    std::optional<absl::Duration> timeout;
    if (flags_.timeout_seconds.has_value()) timeout = absl::Seconds(*flags_.timeout_seconds);
    NSA_ASSIGN_OR_RETURN(client_, Client::Open(endpoint, timeout, interrupt_));
    // Documents are cleaned when they are written, without a loss.
    client_->set_clean(!structured());
    client_->set_note([this](const std::string& text) { Note(text); });
  }
  return client_.get();
}

void Session::NoteWarning() {
  const std::string warning = client_ == nullptr ? "" : client_->warning();
  if (!warning.empty()) Note(absl::StrCat("coordinator: ", warning));
}

void Session::Note(const std::string& text) {
  if (!flags_.quiet) *console_.err << CleanText(text) << "\n" << std::flush;
}

void Session::PrintDocument(const nlohmann::ordered_json& document) {
  out() << (flags_.format == Format::kYaml ? YamlText(document) : JsonText(document));
}

void Session::PrintDocument(const google::protobuf::Message& message) {
  PrintDocument(ToJson(message));
}

bool Session::PrintDocumentOrName(const google::protobuf::Message& message,
                                  const std::string& name) {
  if (structured()) {
    PrintDocument(message);
  } else if (flags_.format == Format::kName) {
    out() << name << "\n" << std::flush;
  } else {
    return false;
  }
  return true;
}

void Session::PrintStreamed(const google::protobuf::Message& message) {
  PrintStreamed(ToJson(message));
}

void Session::PrintStreamed(const nlohmann::ordered_json& document) {
  if (flags_.format == Format::kYaml) {
    out() << "---\n" << YamlText(document);
  } else {
    out() << JsonText(document, true);
  }
  out() << std::flush;
}

}  // namespace nsa::client
