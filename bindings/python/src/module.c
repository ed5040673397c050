/* SPDX-License-Identifier: MIT
 *
 * module.c - the module holdfast._holdfast.
 *
 * The types are shared by the process, and the threads of the library call
 * loggers in the main interpreter.  So only that one may import it.
 */
#include "binding.h"

PyTypeObject *options_type;

PyObject *no_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    (void)type;
    (void)args;
    (void)kw;
    PyErr_SetString(PyExc_TypeError, "a Client makes these");
    return NULL;
}

static PyMethodDef module_methods[] = {
    {"services", services, METH_NOARGS, NULL},
    {"finish", finish, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};

static int module_add_type(PyObject *module, const char *name,
                           PyType_Spec *spec, PyTypeObject **ret)
{
    if (!*ret) /* else it is imported again */
        *ret = (PyTypeObject *)PyType_FromSpec(spec);
    if (!*ret)
        return -1;
    Py_INCREF((PyObject *)*ret);
    return PyModule_AddObject(module, name, (PyObject *)*ret);
}

static int module_add_types(PyObject *module)
{
    return module_add_type(module, "Client", &client_spec, &client_type) ||
                   module_add_type(module, "Lock", &lock_spec, &lock_type) ||
                   module_add_type(module, "Request", &request_spec,
                                   &request_type) ||
                   module_add_type(module, "Observer", &observer_spec,
                                   &observer_type) ||
                   module_add_type(module, "Options", &options_spec,
                                   &options_type)
               ? -1
               : 0;
}

/* Enumerators, under the names that they have in holdfast.h. */
static int module_add_numbers(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } numbers[] = {
        {"GRANTED", HF_GRANTED},   {"FAILED", HF_FAILED},
        {"AT_RISK", HF_AT_RISK},   {"GONE", HF_GONE},
        {"ANSWERED", HF_ANSWERED}, {"CHANGED", HF_CHANGED},
        {"MANUAL", HF_MANUAL},     {"FAIR", HF_FAIR},
        {"SHARED", HF_SHARED},     {"POLL", HF_POLL},
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (PyModule_AddIntConstant(module, numbers[i].name, numbers[i].value))
            return -1;
    return PyModule_AddStringConstant(module, "version", hf_version());
}

static int module_exec(PyObject *module)
{
    static bool begun;

    if (PyInterpreterState_GetID(PyInterpreterState_Get())) {
        PyErr_SetString(PyExc_ImportError,
                        "only the main interpreter can import holdfast");
        return -1;
    }
    if (!begun && lend_begin()) {
        PyErr_NoMemory();
        return -1;
    }
    begun = true;
    return module_add_types(module) || module_add_numbers(module) ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec},
                                          {0, NULL}};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT,
                                        "holdfast._holdfast",
                                        "The functions of libholdfast.",
                                        0,
                                        module_methods,
                                        module_slots,
                                        NULL,
                                        NULL,
                                        NULL};

PyMODINIT_FUNC PyInit__holdfast(void);

PyMODINIT_FUNC PyInit__holdfast(void)
{
    return PyModuleDef_Init(&module_def);
}
