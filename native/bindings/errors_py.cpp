// SPDX-License-Identifier: Apache-2.0
// C++ errors become the Python classes of the same name in hccl_py.core.errors, looked up when one is raised.
#include <exception>

#include "bindings.hpp"
#include "gil.hpp"
#include "hccl_py/error.hpp"

namespace nb = nanobind;

namespace hccl_py {
namespace {

// By Python's own functions: nanobind's would not survive what or_stay() is for.
template <class... Attributes>
void set_error(const char* name, const char* message, Attributes... attributes) {
  or_stay([&] {
    const auto own = [](PyObject* made) { return nb::steal(made); };
    const nb::object module = own(PyImport_ImportModule("hccl_py.core.errors"));
    const nb::object type = own(module.is_valid() ? PyObject_GetAttrString(module.ptr(), name) : nullptr);
    const nb::object error = own(type.is_valid() ? PyObject_CallFunction(type.ptr(), "s", message) : nullptr);
    if (!error.is_valid()) return;  // what went wrong is set
    const bool all = (... && (PyObject_SetAttrString(error.ptr(), attributes.first, attributes.second.ptr()) == 0));
    if (all) PyErr_SetObject(type.ptr(), error.ptr());
  });
}

void translate(const std::exception_ptr& thrown, void*) {
  const auto with = [](const char* key, auto value) { return std::pair<const char*, nb::object>(key, nb::cast(value)); };
  const auto text = [](const char* key, const std::string& value) {
    return std::pair<const char*, nb::object>(key, nb::str(value.c_str()));
  };
  try {
    std::rethrow_exception(thrown);
  } catch (const ConfigError& e) {
    set_error("ConfigError", e.what());
  } catch (const PlanError& e) {
    set_error("PlanError", e.what());
  } catch (const TransportUnavailableError& e) {
    set_error("TransportUnavailableError", e.what(), text("reason", e.reason()));
  } catch (const PeerLostError& e) {
    set_error("PeerLostError", e.what(), with("rank", e.rank()));
  } catch (const CollectiveTimeoutError& e) {
    set_error("CollectiveTimeoutError", e.what(), with("rank", e.rank()), with("peer", e.peer()), with("step", e.step()),
              with("waited_s", e.waited_s()));
  } catch (const DesyncError& e) {
    set_error("DesyncError", e.what(), text("ours", e.ours()), text("theirs", e.theirs()), with("peer", e.peer()));
  } catch (const BrokenGroupError& e) {
    set_error("BrokenGroupError", e.what());
  } catch (const TransportError& e) {
    set_error("TransportError", e.what());
  } catch (const HcclError& e) {
    set_error("InternalError", e.what());
  }
}

}  // namespace

void bind_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace hccl_py
