// SPDX-License-Identifier: Apache-2.0
// What the tests of the network parts have in common: addresses as text, and errors judged by their words.
#pragma once

#include <string>

#include "check.hpp"
#include "hccl_py/socket.hpp"

namespace hccl_py::testing {

inline IpAddress ip(const char* text) {
  const auto parsed = IpAddress::parse(text);
  CHECK(parsed.has_value());
  return *parsed;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

#define CHECK_CONTAINS(text, part) \
  ::hccl_py::testing::check_contains(__FILE__, __LINE__, (text), (part))

inline void check_contains(const char* file, int line, const std::string& text, const std::string& part) {
  if (!contains(text, part)) fail(file, line, "no '" + part + "' in: " + text);
}

// The words of the Error that `body` throws; empty if it throws none.
template <class Error, class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace hccl_py::testing
